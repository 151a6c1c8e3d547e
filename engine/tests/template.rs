//! Chat templates render as transformers renders them (golden/template, made by its make.py).

mod reference;

use std::collections::BTreeMap;

use reference::{metadata, model};
use engine::Error;
use engine::template::{ChatTemplate, Message};
use serde_json::{Map, Value};

#[derive(serde::Deserialize)]
struct Golden {
    bos: String,
    eos: String,
    rows: Vec<Row>,
}

#[derive(serde::Deserialize)]
struct Row {
    conversation: String,
    extra: String,
    prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

#[derive(serde::Deserialize)]
struct Conversations {
    conversations: BTreeMap<String, Vec<Message>>,
    extras: BTreeMap<String, Map<String, Value>>,
}

fn folder() -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/template")
}

fn read<T: serde::de::DeserializeOwned>(path: std::path::PathBuf) -> T {
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// What differs, in words.
fn check(name: &str, source: &str, golden: &Golden, conversations: &Conversations) -> Vec<String> {
    let template = match ChatTemplate::new(source, &golden.bos, &golden.eos) {
        Ok(template) => template,
        Err(error) => return vec![format!("{name}: {error}")],
    };
    let mut wrong = Vec::new();
    for row in &golden.rows {
        let messages = &conversations.conversations[&row.conversation];
        let found = template.render(messages, row.prompt, &conversations.extras[&row.extra]);
        let agree = match (&row.text, row.error.as_deref(), &found) {
            (Some(expected), _, Ok(text)) => expected == text,
            // What the template says is told as it said it; its own mistakes are errors, in other words.
            (None, Some(error), Err(Error::TemplateRefused(said))) => error.strip_prefix("TemplateError: ") == Some(said),
            (None, Some(error), Err(_)) => !error.starts_with("TemplateError"),
            _ => false,
        };
        if !agree {
            wrong.push(format!(
                "{name}, {} {} prompt={}:\n  expected {:?}\n  found    {found:?}",
                row.conversation, row.extra, row.prompt, row.text.as_ref().or(row.error.as_ref()).unwrap()
            ));
        }
    }
    wrong
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong[..wrong.len().min(6)].join("\n"));
}

fn goldens() -> BTreeMap<String, Value> {
    read(folder().join("rendered.json"))
}

#[test]
fn templates_in_the_manner_of_published_families() {
    let conversations: Conversations = read(folder().join("conversations.json"));
    let mut wrong = Vec::new();
    for (name, golden) in goldens().into_iter().filter(|(name, _)| name.ends_with(".jinja")) {
        let source = std::fs::read_to_string(folder().join("templates").join(&name)).unwrap();
        wrong.extend(check(&name, &source, &serde_json::from_value(golden).unwrap(), &conversations));
    }
    assert_none(&wrong);
}

#[test]
fn templates_of_the_models() {
    let conversations: Conversations = read(folder().join("conversations.json"));
    for name in ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"] {
        let golden: Golden = serde_json::from_value(goldens()[name].clone()).unwrap();
        let metadata = metadata(&model(name));
        let source = metadata.str("tokenizer.chat_template").unwrap().expect("the file has a template");
        assert_none(&check(name, source, &golden, &conversations));
    }
}

/// Templates that are not ours to commit: PLUMB_TEMPLATES names a folder on which golden/template/make.py was run.
#[test]
fn templates_of_a_folder() {
    let Some(folder) = std::env::var_os("PLUMB_TEMPLATES").map(std::path::PathBuf::from) else { return };
    let conversations: Conversations = read(self::folder().join("conversations.json"));
    let goldens: BTreeMap<String, Golden> = read(folder.join("rendered.json"));
    let mut bad = BTreeMap::new();
    for (name, golden) in &goldens {
        let source = std::fs::read_to_string(folder.join(name)).unwrap();
        let wrong = check(name, &source, golden, &conversations);
        if let Some(first) = wrong.first() {
            bad.insert(name, format!("{} of {}: {first}", wrong.len(), golden.rows.len()));
        }
    }
    assert!(bad.is_empty(), "{} of {} templates\n{bad:#?}", bad.len(), goldens.len());
}

#[test]
fn strftime_now_gives_the_date() {
    let template = ChatTemplate::new("{{ strftime_now('%Y-%m-%d') }}", "", "").unwrap();
    let date = template.render(&[], false, &Map::new()).unwrap();
    assert_eq!(date.len(), 10);
    assert!(date.starts_with("20") && date.as_bytes()[4] == b'-');
}

#[test]
fn a_template_that_does_not_parse_is_an_error_that_says_where() {
    let error = ChatTemplate::new("{% for x in %}", "", "").unwrap_err().to_string();
    assert!(error.contains("chat template") && error.contains('1'), "{error}");
}

#[test]
fn a_template_that_never_ends_is_an_error() {
    let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(endless, "", "").unwrap();
    assert!(template.render(&[], false, &Map::new()).is_err());
}

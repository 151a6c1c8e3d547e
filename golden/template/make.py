#!/usr/bin/env python3
"""Rendered conversations by transformers, for engine/tests/template.rs.

    make.py MODELS [FOLDER]

MODELS holds the development models, whose own templates are read from their files. The templates in templates/ are
written for this test in the manner of published families. With FOLDER, its *.jinja files are rendered as well, into
FOLDER/rendered.json: a wider check against templates that are not ours to commit (PLUMB_TEMPLATES=FOLDER in the test).
Writes conversations.json and rendered.json.
"""
import importlib.metadata
import json
import pathlib
import sys

import gguf
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city, in °C & \"more\" <now>",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city's name"},
        "unit": {"type": "string", "enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"]}}}
TIME = {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


CALL = {"type": "function", "id": "abc123def", "function": {
    "name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "exact": True, "none": None, "f": 1.0}}}
CONVERSATIONS = {
    "user": [user("Hi")],
    "system": [system("You are terse."), user("Hi")],
    "turns": [user("One?"), assistant("1"), user("Two?"), assistant("2"), user("Three?")],
    "system_turns": [system(" Be kind.\n"), user("One?"), assistant(" 1 \n"), user("  Two?\n\n")],
    "ends_with_answer": [user("Q"), assistant("A")],
    "empty": [user("")],
    "empty_system": [system(""), user("x"), assistant(""), user("y")],
    "unicode": [system("你是助手。"), user("🙂 é\u0301 \u202e <|im_end|> {{ 7 * 7 }} {% if %} \\n \"q\" 'a'"), assistant("ok"), user("\t\n")],
    "two_users": [user("a"), user("b")],
    "late_system": [user("a"), assistant("b"), system("c"), user("d")],
    "unknown_role": [user("a"), {"role": "critic", "content": "b"}],
    "think": [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c"), assistant("<think>\nhm2\n</think>\n\nd")],
    "think_field": [user("a"), assistant("b", reasoning_content="\nhm\n")],
    "call": [user("Weather?"), assistant("", tool_calls=[CALL]), {"role": "tool", "content": "{\"t\": 3}", "tool_call_id": "abc123def"}],
    "call_answered": [system("S"), user("Weather?"), assistant("", tool_calls=[CALL]), {"role": "tool", "content": "3"},
                      assistant("It is 3."), user("Thanks")],
    "two_calls": [user("W?"), assistant("Let me see.", tool_calls=[CALL, CALL]), {"role": "tool", "content": "3"},
                  {"role": "tool", "content": "4"}],
    "parts": [user([{"type": "text", "text": " look "}, {"type": "image"}])],
}
EXTRAS = {
    "": {},
    "tools": {"tools": [WEATHER, TIME]},
    "no_thinking": {"enable_thinking": False},
    "date": {"date_string": "30 Nov 2026"},
}


def wanted(conversation, extra):
    if extra == "tools":
        return conversation in ("user", "system", "turns", "call", "call_answered", "two_calls", "unicode")
    return extra == "" or conversation in ("user", "system_turns", "think")


def render(template, bos, eos):
    rows = []
    for conversation, messages in CONVERSATIONS.items():
        if "messages" not in template and conversation != "user":
            continue
        for extra, variables in EXTRAS.items():
            if not wanted(conversation, extra):
                continue
            for prompt in (False, True):
                row = {"conversation": conversation, "extra": extra, "prompt": prompt}
                try:
                    text, _ = render_jinja_template(
                        [messages], chat_template=template, add_generation_prompt=prompt, bos_token=bos, eos_token=eos,
                        **variables)
                    row["text"] = text[0]
                except Exception as e:  # what raise_exception says, or a template's own mistake
                    row["error"] = f"{type(e).__name__}: {e}"
                rows.append(row)
    return rows


def main():
    folder = pathlib.Path(sys.argv[1])
    (HERE / "conversations.json").write_text(
        json.dumps({"conversations": CONVERSATIONS, "extras": EXTRAS}, ensure_ascii=False, indent=1) + "\n", encoding="utf8")
    out = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        out[path.name] = {"bos": "<s>", "eos": "</s>", "rows": render(path.read_text(encoding="utf8"), "<s>", "</s>")}
    for model in ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"):
        fields = gguf.GGUFReader(folder / f"{model}.gguf").fields
        tokens = fields["tokenizer.ggml.tokens"]
        bos, eos = (tokens.contents(fields[f"tokenizer.ggml.{k}_token_id"].contents()) for k in ("bos", "eos"))
        out[model] = {"bos": bos, "eos": eos, "rows": render(fields["tokenizer.chat_template"].contents(), bos, eos)}
    out["versions"] = {p: importlib.metadata.version(p) for p in ("jinja2", "transformers", "gguf")}
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace('},{"conv', '},\n{"conv')
    (HERE / "rendered.json").write_text(text + "\n", encoding="utf8")
    if len(sys.argv) > 2:
        wide = pathlib.Path(sys.argv[2])
        rows = {p.name: {"bos": "<s>", "eos": "</s>", "rows": render(p.read_text(encoding="utf8"), "<s>", "</s>")}
                for p in sorted(wide.glob("*.jinja"))}
        (wide / "rendered.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf8")


if __name__ == "__main__":
    main()

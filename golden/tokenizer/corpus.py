"""Texts on which tokenizers differ. Hand-written, then seeded random ones."""
import random
import unicodedata

PLAIN = """
Hello world
 Hello world
Hello  world
  leading and trailing  
The quick brown fox jumps over the lazy dog.
I'm you're we've they'll he'd it's I'M YOU'RE WE'VE don't DON'T o'clock 'tis 'S 'Tis'
can't've ’s curly’s it’ll
naïve façade coöperate Ångström Ελληνικά Ωmega Привет, мир! Съешь ещё этих мягких французских булок
ѐ ё Ђ ӂ Ԁ ᾳ ﬁ ﬀ ǅ ǈ ª º ʰ ˢ
你好，世界！今天天气怎么样？
日本語のテキスト、カタカナとひらがな。「引用」
漢字かな交じり文123テスト
안녕하세요 세계! ㄱㄴㄷ 가나다 한국어문장
مرحبا بالعالم! كيف حالك؟ ١٢٣٤٥
שלום עולם! מה שלומך? שָׁלוֹם
नमस्ते दुनिया! आप कैसे हैं? १२३ क्षत्रिय
สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓
বাংলা ভাষা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ગુજરાતી
ქართული Հայերեն አማርኛ ᠮᠣᠩᠭᠣᠯ ᏣᎳᎩ ខ្មែរ မြန်မာ ລາວ
Tiếng Việt có dấu: Trường Đại học Bách khoa
𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒎𝒂𝒕𝒉 𝟙𝟚𝟛 ℝ→ℂ ∀x∈S: ∃y ∑∫√ ½ ¾ ² ³ ₂ Ⅷ ⅷ ① ㊿
😀 😃😄 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️‍🔥 ☺️ 🧑🏿‍🚀
(╯°□°)╯︵ ┻━┻ ¯\\_(ツ)_/¯
1 12 123 1234 12345 123456 1234567 12345678901234567890
3.14159 1,234,567.89 0x1F 1e-10 2024-11-30T20:14:57Z +49 30 123456 v1.2.3-rc.4
a1b2c3 x86_64 abc123def 4th 2nd 1990s
https://example.com/path/to/page?query=1&other=a%20b#fragment http://user:pw@[::1]:8080/
name.surname+tag@example.co.uk C:\\\\Windows\\\\System32 /usr/local/bin ~/.config
--flag=value -x $HOME ${VAR} $(cmd) `code` "quoted" 'single' <html lang="en"> &amp; &#39;
!!! ??? ... …… —– --- === *** ### @@@ ~~~ ^^^ %%% &&& ||| ;;; ::: ,,, ((())) [[[]]] {{{}}}
a+b=c a==b a!=b a<=b a>=b a->b a=>b a::b a//b a/*b*/ a<<b a>>b a&&b a||b !a ~a #a @a
CamelCaseWord snake_case_word kebab-case-word SCREAMING_CASE HTTPServer iPhone eBay McDonald
supercalifragilisticexpialidocious Donaudampfschifffahrtsgesellschaftskapitän
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
ababababababababababababababab =================================== -----------------------------
a a a a a a a a a a
""".strip("\n").split("\n")

BLOCKS = [
    "",
    " ", "  ", "   ", "    ", "     ", " " * 15, " " * 16, " " * 17, " " * 31, " " * 32, " " * 33, " " * 64, " " * 100,
    "\t", "\t\t", "\t\t\t\t", "\t" * 33, " \t", "\t ", "\t \t",
    "\n", "\n\n", "\n\n\n", "\n" * 16, "\n" * 31, "\n" * 33, "\n" * 64, "\r\n", "\r\n\r\n", "\r", "\r\r", "\n\r", "\n \n", " \n", "\n ",
    " \n \n ", "\n\t\n", "a\n", "\na", "a\n\n", "a \n", "a\n b", "a  \n  b", "a \n\n b\n\n\n c", "a\r\nb\r\n\r\nc",
    "a\t\tb\t c \td", "a   b    c     d", "x" + " " * 40 + "y", "  x", "   x", " x ", "x  ", "x   ",
    "!\n", "! \n", "...\n\n", "a.\n\nb", "1\n2\n\n3", "1 2  3   4", " 1", "  1", "1 ", " 12 345  6789",
    "\u00a0", "a\u00a0b", "a \u00a0 b", "\u2003em\u2003space", "\u3000全角\u3000空白", "a\u2028b\u2029c", "a\u0085b", "zero\u200bwidth\u200djoin\ufeffbom",
    "".join(chr(c) for c in range(1, 32)), "a\x01b\x1f\x7f", "\x0b\x0c", "bell\x07 esc\x1b[31mred\x1b[0m",
    "\u0301", "e\u0301", "a\u0308\u0323", "\u0915\u094d\u0937", "\u0e33", "\u1100\u1161\u11a8",
    "\ufffd", "\U0010ffff", "\ue000", "\U000e0041", "\u2581", "a\u2581b \u2581", "\u0120", "\u010a\u0120a",
    "<0x0A>", "<0xE2>", "<0x41>A",
    "def f(x):\n    if x > 0:\n        return x ** 2\n\n    # comment\n    return -x\n",
    "fn main() {\n\tlet v: Vec<u32> = (0..10).map(|x| x * 2).collect();\n\tprintln!(\"{v:?}\");\n}\n",
    "#include <stdio.h>\r\nint main(void) {\r\n  printf(\"%d\\n\", 42);\r\n}\r\n",
    "SELECT * FROM t WHERE a = 'x' AND b IS NOT NULL;\n-- comment\n",
    "{\"key\": [1, 2.5, null, true], \"s\": \"a\\u00e9\\n\"}",
    "<div class=\"a\"><p>Text</p><br/></div><!-- c --><table><tr><td>1</td></tr></table>",
    "# Title\n\n- item\n- item 2\n  - nested\n\n1. one\n2. two\n\n```python\nprint('x')\n```\n\n| a | b |\n|---|---|\n",
    "\\begin{equation} E = mc^2 \\label{eq:1} \\end{equation}",
]

# Marker texts of all families, alone, in text, doubled, broken.
MARKERS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<mask>",
    "<start_of_turn>", "<end_of_turn>", "<unused0>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<tool_call>",
    "</tool_call>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end|>", "<|user|>", "<|assistant|>", "[INST]",
    "[/INST]", "[multimodal]", "<start_of_image>", "<|vision_start|>", "<|object_ref_end|>", "[PAD151665]", "<empty_output>",
    "<PRE>", "<SUF>", "<MID>", "<EOT>", "[PAD]", "[EOS]", "<fim-prefix>", "<REPO>", "<PAD>",
]
SPECIAL = MARKERS + [f"a {m} b" for m in MARKERS] + [
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<bos><start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\n",
    "<|im_start|><|im_start|>", "<|im_end|><|im_end|> <|im_end|>", "<|im_start", "|im_end|>", "<|im_<|im_end|>end|>",
    "<|endoftext|>\n\n<|endoftext|>", "x<|endoftext|>  y", "<|im_end|>\n\n\n", "<eos>\n<eos>  <eos>", "<s>a</s><s>b</s>",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "<|IM_START|>", "< |im_start|>", "<\u200b|im_start|>",
    "<|fim_prefix|>def f():\n<|fim_suffix|>\n<|fim_middle|>",
]

ALPHABETS = [
    [chr(c) for c in range(32, 127)],
    list("ab  \n\n\t\r\n'1.-"),
    list("  \n\t\u00a0\u3000\r") + ["a", "1", "!", "。"],
    [chr(c) for c in range(0xA1, 0x250)],
    [chr(c) for c in range(0x370, 0x530) if unicodedata.category(chr(c)) != "Cn"],
    [chr(c) for c in range(0x590, 0x700) if unicodedata.category(chr(c)) != "Cn"],
    [chr(c) for c in range(0x900, 0xD00) if unicodedata.category(chr(c)) != "Cn"],
    [chr(c) for c in range(0xE01, 0xF00) if unicodedata.category(chr(c)) != "Cn"],
    [chr(c) for c in range(0x3041, 0x3100) if unicodedata.category(chr(c)) != "Cn"] + [chr(c) for c in range(0x4E00, 0x5200)],
    [chr(c) for c in range(0xAC00, 0xAE00)],
    [chr(c) for c in range(0x1F300, 0x1F650)] + ["\u200d", "\ufe0f", " "],
    [chr(c) for c in range(0x2000, 0x2C00) if unicodedata.category(chr(c)) not in ("Cn", "Zl", "Zp")],
    [chr(c) for c in range(0x300, 0x370)] + list("aeiou "),
    ["the ", "Of", " and", "ing", "123", "'s", "'LL", "\n\n", "    ", "=", "==", "_", "()", ";\n", "é", "中文", "🙂", "<|", "|>", "</", "s>"],
    ["=", "-", "*", "#", "_", ".", " "],
]


def texts():
    out = []
    for line in PLAIN:
        out.append(line.replace("\\\\", "\\"))
        for form in ("NFC", "NFD", "NFKD"):
            changed = unicodedata.normalize(form, out[-1])
            if changed not in out:
                out.append(changed)
    out += BLOCKS + SPECIAL
    rng = random.Random(20260214)
    for i in range(300):
        alphabet = ALPHABETS[i % len(ALPHABETS)]
        if i % 5 == 4:  # mixtures
            alphabet = alphabet + rng.choice(ALPHABETS) + rng.choice(ALPHABETS)
        out.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))))
    assert len(set(out)) > 500
    return list(dict.fromkeys(out))

"""The 200 texts of the parity table: each kind of text that embedded wrongly in a trial or that bounds a code path."""

from __future__ import annotations

from pathlib import Path
from typing import List

CORPUS = Path(__file__).resolve().parents[2] / "fixtures" / "media" / "text"
COUNT = 200

#: Empty, white space only, one token, one character.
SHORT = ["", " ", "\n\t", "a", "harbour", ".", "7", "?!"]
#: Scripts, combining marks, joined emoji, directions, unusual spaces and case, and characters that normalizers drop or replace.
UNICODE = [
    "Zürich, Ærøskøbing und Łódź – naïve café",
    "cafe\u0301 and café",
    "ﬁne ﬂour, ½ cup, ２０２６, Ⅷ",
    "ΣΊΣΥΦΟΣ ΑΝΈΒΗΚΕ, İstanbul, straße",
    "Гавань просыпается раньше города",
    "港は町より先に目を覚ます。",
    "항구는 도시보다 먼저 깨어난다",
    "الميناء يستيقظ قبل المدينة",
    "बंदरगाह शहर से पहले जागता है",
    "ท่าเรือตื่นก่อนเมือง",
    "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿 👍🏽",
    "zero\u200bwidth\u200djoiner\ufeffmark",
    "no\u00a0break\u2003em\u3000ideographic",
    "tab\tnew\nline\r\nreturn",
    "control\x01and\x7fdelete",
    "replacement \ufffd character",
    "\U0001d54f\U0001d556\U0001d55d\U0001d55d𝕠",
    "[CLS] [SEP] [MASK] <s> </s> <pad> <mask> [PAD]",
    "ALL CAPITALS AND MiXeD cAsE",
    "snake_case camelCase kebab-case path/to/file.py:12",
    "def f(x):\n    return {k: v ** 2 for k, v in x.items()}",
    "https://example.org/a?b=c&d=%20#e",
    "a" * 120,
    "-" * 90,
]


def sentences() -> List[str]:
    """The sentences of the corpus of fixtures, in order."""
    text = " ".join(path.read_text() for path in sorted(CORPUS.glob("*.txt")))
    return [sentence.strip() + "." for sentence in text.replace("\n", " ").split(". ") if sentence.strip()]


def texts(limit: int, tokens_of) -> List[str]:
    """200 texts for a model that reads `limit` tokens. `tokens_of` counts the tokens of a text, with those of the tokenizer."""
    plain = sentences()
    words = " ".join(plain).split()
    found = [*SHORT, *UNICODE]
    # Around 512 tokens and around the limit, and over the limit.
    for count in sorted({min(512, limit) - 1, min(512, limit), limit, limit + 40}):
        found.append(of_length(words, count, tokens_of))
    found += ["\n".join(plain[at : at + 3]) for at in range(0, 15, 3)]
    found += plain[15:60]
    at = 0
    while len(found) < COUNT:
        # Phrases of 2 to 13 words: batches of many lengths.
        found.append(" ".join(words[at : at + 2 + len(found) % 12]))
        at += 7
    return found[:COUNT]


def of_length(words: List[str], count: int, tokens_of) -> str:
    """A text of `count` tokens, or the longest one below."""
    low, high = 1, count
    words = words * (1 + count // len(words))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tokens_of(" ".join(words[:middle])) <= count else (low, middle - 1)
    text = " ".join(words[:low])
    while tokens_of(text + " a") <= count:
        text += " a"
    return text

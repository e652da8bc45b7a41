"""Names cannot leave the code in which Markdown shows them; checked with a Markdown parser."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import Environment
from markdown_it import MarkdownIt

from perdure.report.rendering import _code, _fence, markdown_escaped

TEXT = st.text(
    alphabet=st.sampled_from("ab `~\n\r\t\\<>&|#-*_[]()!\x85\u2028\x0b\x00é"), max_size=30
)


@given(TEXT)
@example("a ``` b")
@example("`")
@example(" ` ")
@example("")
def test_inline_code_is_one_piece_of_code(text: str) -> None:
    tokens = MarkdownIt().parse(f"- {_code(text)}: state")
    (inline,) = (token for token in tokens if token.type == "inline")
    children = [(child.type, child.content) for child in inline.children or ()]
    assert [kind for kind, _ in children] == ["code_inline", "text"]
    assert children[1][1] == ": state"


@given(st.lists(TEXT.map(lambda text: f"perdure run '{text}'"), min_size=1, max_size=3))
@example(["perdure run 'a\n```\n# title\n```'"])
@example(["perdure run 'a\r```\r# title\r```'"])
def test_commands_stay_in_their_fence(commands: list[str]) -> None:
    environment = Environment(autoescape=True)
    environment.filters["fence"] = _fence
    template = (
        '{{ commands | join("\\n") | fence }}sh\n'
        '{{ commands | join("\\n") | safe }}\n'
        '{{ commands | join("\\n") | fence }}\n\nafter'
    )
    text = environment.from_string(template).render(commands=commands)
    tokens = [token.type for token in MarkdownIt().parse(text)]
    assert tokens == ["fence", "paragraph_open", "inline", "paragraph_close"]


@given(TEXT)
@example("a\n# b")
def test_other_names_are_text(text: str) -> None:
    tokens = MarkdownIt().parse(f"# {markdown_escaped(text)}\n")
    inline = [token for token in tokens if token.type == "inline"]
    for child in (child for token in inline for child in token.children or ()):
        assert child.type in ("text", "text_special", "softbreak")

"""Reads a page as a browser would, strictly."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Collects tags, attributes and text; notes tags that are closed in another order than opened."""

    VOID = ("meta", "img", "hr", "br", "link", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.parts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    @property
    def text(self) -> str:
        """What a reader sees, without markup."""
        return "".join(self.parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def check_self_contained(self) -> None:
        """Nothing is fetched and nothing runs."""
        for tag, attributes in self.tags:
            assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
            assert not [name for name in attributes if name.startswith("on")]
            for name in ("src", "href", "srcset", "action", "data", "xlink:href", "background"):
                value = attributes.get(name)
                assert value is None or value.startswith("data:image/")
            assert tag != "img" or attributes.get("alt")

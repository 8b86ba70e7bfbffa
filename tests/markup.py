"""What a browser would see of an HTML page."""

from collections import Counter
from html.parser import HTMLParser


class Tags(HTMLParser):
    """How often each tag occurs, all attributes, and the text in between."""

    def __init__(self, page: str):
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.counts[tag] += 1
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data

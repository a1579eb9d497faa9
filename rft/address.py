"""What is an address of a service."""

from urllib.parse import urlsplit


def is_address(url: str) -> bool:
    """Whether `url` is `http://HOST[:PORT]` or `https://…`, with nothing around it; it may have a path."""
    if url.split() != [url]:  # urlsplit drops blanks and line ends
        return False
    try:
        place = urlsplit(url)
        return place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:  # brackets of no IPv6 address, a port that is no number
        return False

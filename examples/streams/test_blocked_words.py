"""A word is masked from when it is blocked until it is allowed again."""

from blocked_words import comments, words

from offsetmgr.streams import Tester


def test_blocked_words_are_masked() -> None:
    """Both groups run in one tester; the second reads the first one's table."""
    tester = Tester()
    tester.add_processor(words)
    tester.add_processor(comments)
    clean = tester.queue_tracker("clean-comments")
    tester.consume("comments", "bob", "what a Darn day")
    tester.consume("block-word", "darn", True)
    tester.consume("comments", "bob", "what a Darn day")
    tester.consume("block-word", "darn", False)
    tester.consume("comments", "bob", "what a Darn day")
    assert [comment.value for comment in clean] == [
        "what a Darn day",
        "what a **** day",
        "what a Darn day",
    ]

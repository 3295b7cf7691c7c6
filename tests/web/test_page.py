"""The page as a person uses it: a real Chromium, before a model that says what the test wants."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import ConsoleMessage, Error, Page, Request, expect

from asyncchat.testing import Reply
from tests.web.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

expect.set_options(timeout=5_000)


@pytest.fixture
def complaints() -> list[str]:
    """What the console of the page says is wrong. A test that provokes something clears it."""
    return []


@pytest_asyncio.fixture(loop_scope="session")
async def page(tab: Page, site: Site, complaints: list[str]) -> AsyncIterator[Page]:
    """The page, open and ready. Whatever a test does: no error in the console, nothing from another host."""
    asked: list[str] = []

    def note_request(request: Request) -> None:
        asked.append(request.url)

    def note_error(error: Error) -> None:
        complaints.append(str(error))

    def note_console(said: ConsoleMessage) -> None:
        complaints.append(f"{said.type}: {said.text}")

    tab.on("request", note_request)
    tab.on("pageerror", note_error)
    tab.on("console", note_console)
    await tab.set_viewport_size({"width": 1100, "height": 600})
    await tab.goto(site.url)
    await expect(tab.locator("#about")).to_have_text("m, in a test")
    yield tab
    tab.remove_listener("request", note_request)
    tab.remove_listener("pageerror", note_error)
    tab.remove_listener("console", note_console)
    if not tab.is_closed():
        await tab.goto("about:blank")  # which ends what it still asks for
    assert all(url.startswith((site.url, "data:")) for url in asked), asked
    assert complaints == []


async def ask(page: Page, question: str = "Hello?", *, count: int = 1) -> None:
    await page.get_by_role("radio", name=f"{count} answer").check()
    await page.get_by_label("Your message").fill(question)
    await page.get_by_role("button", name="Send").click()


# ---------------------------------------------------------------------------------------- answers


async def test_words_appear_as_they_come(page: Page, site: Site) -> None:
    site.model.say("One two three four.").stall(after=3)
    await ask(page)
    answer = page.get_by_role("article")
    await expect(answer.locator(".text")).to_have_text("One two")
    await expect(answer).to_have_attribute("aria-busy", "true")
    await expect(answer.locator(".facts")).to_have_text(re.compile(r"^first token \d+\.\d\d s$"))
    site.model.resume()
    await expect(answer.locator(".text")).to_have_text("One two three four.")
    await expect(answer).to_have_attribute("aria-busy", "false")


async def test_end_of_an_answer_tells_its_facts(page: Page, site: Site) -> None:
    site.model.say("One two.").drip(0.01).usage(7, 2).finish("length")
    await ask(page)
    facts = page.locator(".facts span")
    await expect(facts).to_have_text(
        [
            re.compile(r"^first token \d+\.\d\d s$"),
            re.compile(r"^\d+ tokens/s$"),
            "usage 7 in, 2 out",
            "finish_reason length",
        ]
    )


async def test_usage_that_was_not_sent_is_not_made_up(page: Page, site: Site) -> None:
    site.model.say("One two.").without_usage()
    await ask(page)
    await expect(page.locator(".facts")).to_contain_text("usage not sent")


async def test_reasoning_is_folded_away_until_it_is_wanted(page: Page, site: Site) -> None:
    site.model.think("Let me see.").say("Yes.")
    await ask(page)
    await expect(page.locator(".text")).to_have_text("Yes.")
    thought = page.get_by_text("Let me see.")
    await expect(thought).to_be_hidden()
    await page.locator("summary").click()
    await expect(thought).to_be_visible()


async def test_markup_in_an_answer_is_text_and_does_not_run(page: Page, site: Site) -> None:
    said = '<script>document.title="run"</script><img src=x onerror="document.title=\'run\'"><b>bold</b>'
    site.model.think(said).say(said)
    await ask(page, said)
    await expect(page.locator(".text")).to_have_text(said)
    await expect(page.locator(".question")).to_have_text("You: " + said)
    assert await page.locator("main :is(script, img, b)").count() == 0
    assert await page.title() == "m · asyncchat"


async def test_page_cannot_make_html_of_text_at_all(page: Page, complaints: list[str]) -> None:
    tried = await page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } }"
    )
    assert tried == "TypeError"
    complaints.clear()


async def test_conversation_goes_on_with_what_was_said(page: Page, site: Site) -> None:
    site.model.say("Blue.")
    await ask(page, "Which colour?")
    await expect(page.locator(".text")).to_have_text("Blue.")
    site.model.say("Yes.")
    await ask(page, "Really?")
    await expect(page.locator(".text").nth(1)).to_have_text("Yes.")
    assert site.model.requests[1].body["temperature"] == 0
    assert site.model.requests[1].body["messages"] == [
        {"role": "user", "content": "Which colour?"},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "Really?"},
    ]


async def test_new_conversation_forgets_what_was_said(page: Page, site: Site) -> None:
    site.model.say("Blue.")
    await ask(page, "Which colour?")
    await expect(page.locator(".text")).to_have_text("Blue.")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.get_by_role("article")).to_have_count(0)
    site.model.say("What?")
    await ask(page, "Really?")
    await expect(page.locator(".text")).to_have_text("What?")
    assert site.model.requests[1].body["messages"] == [{"role": "user", "content": "Really?"}]


async def test_new_conversation_ends_the_answer_on_its_way(page: Page, site: Site) -> None:
    site.model.say("One two three.").stall(after=3)
    await ask(page)
    await expect(page.locator(".text")).to_have_text("One two")
    await page.get_by_role("button", name="New conversation").click()
    await site.model.wait_for_disconnect()
    await site.wait_until_free()
    await expect(page.get_by_role("article")).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await expect(page.get_by_role("status")).to_have_text("")


async def test_suggestion_is_asked_at_a_click(page: Page, site: Site) -> None:
    site.model.say("Deep.")
    await page.get_by_role("button", name="Describe the sea.").click()
    await expect(page.locator(".text")).to_have_text("Deep.")


# ----------------------------------------------------------------------------------- side by side


async def test_two_answers_come_side_by_side_at_the_same_time(page: Page, site: Site) -> None:
    site.model.say("Left one.").stall(after=2)
    site.model.say("Right one.").stall(after=2)
    await ask(page, count=2)
    first, second = (page.get_by_role("article", name=f"Answer {n} of 2") for n in (1, 2))
    await expect(first.locator(".text")).to_have_text(re.compile("^(Left|Right)$"))
    await expect(second.locator(".text")).to_have_text(re.compile("^(Left|Right)$"))
    assert len(site.model.active) == 2
    left, right = await first.bounding_box(), await second.bounding_box()
    assert left
    assert right
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    site.model.resume()
    await expect(page.locator(".text")).to_have_text([re.compile("one.$")] * 2)


async def test_conversation_goes_on_from_the_answer_that_was_picked(
    page: Page, site: Site
) -> None:
    site.model.say("Left.")
    site.model.say("Right.")
    await ask(page, count=2)
    await expect(page.locator(".facts")).to_contain_text(["finish_reason"] * 2)
    other = page.get_by_role("radio", name="Answer 2")
    await other.check()
    picked = await page.get_by_role("article", name="Answer 2").locator(".text").inner_text()
    site.model.say("So it is.")
    await ask(page, "Sure?")
    await expect(page.locator(".text").nth(2)).to_have_text("So it is.")
    messages = site.model.requests[-1].body["messages"]
    assert isinstance(messages, list)
    assert messages[1] == {"role": "assistant", "content": picked}


async def test_narrow_window_has_answers_below_each_other_and_nothing_cut(
    page: Page, site: Site
) -> None:
    await page.set_viewport_size({"width": 360, "height": 640})
    long = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft " * 2
    site.model.say(long)
    site.model.say(long)
    await ask(page, long, count=2)
    await expect(page.locator(".facts")).to_contain_text(["finish_reason"] * 2)
    first, second = [await box.bounding_box() for box in await page.get_by_role("article").all()]
    assert first
    assert second
    assert first["y"] + first["height"] <= second["y"]
    width = "([...document.querySelectorAll('body, main, .answer, .text, form')])"
    assert await page.evaluate(f"{width}.every((e) => e.scrollWidth <= e.clientWidth + 1)")


# ------------------------------------------------------------------------------- stopping, leaving


@pytest.mark.parametrize("after", ["headers", 3])
async def test_stop_frees_the_model_and_keeps_what_was_said(
    page: Page, site: Site, after: int | str
) -> None:
    site.model.say("One two three.").stall(after=after)  # type: ignore[arg-type]
    await ask(page)
    await site.model.wait_for_requests(1)
    if after == 3:
        await expect(page.locator(".text")).to_have_text("One two")
    await page.get_by_role("button", name="Stop").click()
    await site.model.wait_for_disconnect()
    await site.wait_until_free()
    await expect(page.locator(".facts")).to_contain_text("stopped")
    await expect(page.locator(".text")).to_have_text("One two" if after == 3 else "")
    await expect(page.get_by_label("Your message")).to_be_focused()
    site.model.say("Four.")
    await ask(page, "And?")
    await expect(page.locator(".text").nth(1)).to_have_text("Four.")
    messages = site.model.requests[-1].body["messages"]
    assert isinstance(messages, list)
    assert len(messages) == (3 if after == 3 else 1)  # a question without an answer is left out


async def test_stop_ends_all_answers_of_the_turn(page: Page, site: Site) -> None:
    site.model.otherwise(Reply().say("One two three.").stall(after=3))
    await ask(page, count=4)
    await expect(page.locator(".text")).to_have_text(["One two"] * 4)
    await page.keyboard.press("Escape")
    for _ in range(4):
        await site.model.wait_for_disconnect()
    await site.wait_until_free()
    await expect(page.locator(".facts")).to_contain_text(["stopped"] * 4)


@pytest.mark.parametrize("after", ["headers", 3])
async def test_closing_the_tab_frees_the_model(page: Page, site: Site, after: int | str) -> None:
    site.model.otherwise(Reply().say("One two three.").stall(after=after))  # type: ignore[arg-type]
    await ask(page, count=2)
    await site.model.wait_for_requests(2)
    await page.close()
    await site.model.wait_for_disconnect()
    await site.model.wait_for_disconnect()
    await site.wait_until_free()


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("reply", "sentence", "kept"),
    [
        (Reply().fail(500, "sk-secret"), "The model cannot be asked at the moment.", ""),
        (Reply().fail(400, "sk-secret"), "The model refused the request.", ""),
        (Reply().say("One two three.").cut(after=3), "The answer broke off.", "One two"),
        (Reply().say("One two").error_event("sk-secret"), "The answer failed.", "One two"),
    ],
    ids=["refused", "bad request", "cut", "error in the stream"],
)
async def test_error_is_a_sentence_beside_what_was_said(
    page: Page, site: Site, reply: Reply, sentence: str, kept: str
) -> None:
    site.model.queue(reply)
    await ask(page)
    await expect(page.get_by_role("alert")).to_have_text(sentence)
    await expect(page.locator(".text")).to_have_text(kept)
    await expect(page.get_by_role("article")).to_have_attribute("aria-busy", "false")
    assert len(site.errors) == 1
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_one_answer_that_fails_leaves_the_other_alone(page: Page, site: Site) -> None:
    site.model.fail(500)
    site.model.say("Fine.")
    await ask(page, count=2)
    await expect(page.get_by_role("alert")).to_have_count(1)
    await expect(page.get_by_text("Fine.")).to_be_visible()


async def test_answer_without_an_end_is_no_whole_answer(page: Page, site: Site) -> None:
    await page.route(
        "**/chat", lambda route: route.fulfill(body='data: {"type":"start"}\n\n'), times=1
    )
    await ask(page)
    await expect(page.get_by_role("alert")).to_have_text("The answer broke off before its end.")


async def test_refusal_by_the_page_s_own_server_is_a_sentence(
    page: Page, complaints: list[str]
) -> None:
    await ask(page, "word " * 60_000)
    await expect(page.get_by_role("alert")).to_have_text(
        "The conversation has become too long. Please start a new one."
    )
    complaints.clear()


async def test_server_that_ends_is_a_sentence_and_leaves_no_request(
    page: Page, site: Site, complaints: list[str]
) -> None:
    site.model.say("One two three.").stall(after=3)
    await ask(page)
    await expect(page.locator(".text")).to_have_text("One two")
    await site.server.__aexit__(None, None, None)
    await site.wait_until_free()
    await expect(page.get_by_role("alert")).to_have_text(
        "The connection broke before the answer was complete."
    )
    await ask(page, "And now?")
    await expect(page.get_by_role("alert").nth(1)).to_have_text(
        "The page's own server does not answer. Is it still running?"
    )
    complaints.clear()


# --------------------------------------------------------------------------------------- keyboard


async def test_keyboard_alone_is_enough(page: Page, site: Site) -> None:
    site.model.say("One two three.").stall(after=3)
    message = page.get_by_label("Your message")
    await expect(message).to_be_focused()  # from the start
    await page.keyboard.type("First line")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("second line")
    await expect(message).to_have_value("First line\nsecond line")
    await page.keyboard.press("Enter")
    await expect(page.locator(".text")).to_have_text("One two")
    await expect(message).to_have_value("")
    assert site.model.requests[0].last_text == "First line\nsecond line"
    await page.keyboard.type("Next")
    await page.keyboard.press("Enter")  # an answer is on its way: it stays where it is
    await expect(message).to_have_value("Next")
    await page.keyboard.press("Escape")
    await site.model.wait_for_disconnect()
    await expect(page.locator(".facts")).to_contain_text("stopped")
    site.model.say("Good.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".text").nth(1)).to_have_text("Good.")


async def test_blank_message_is_not_sent(page: Page, site: Site) -> None:
    await page.get_by_label("Your message").fill(" \n ")
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article")).to_have_count(0)


async def test_enter_that_picks_a_character_does_not_send(page: Page, site: Site) -> None:
    message = page.get_by_label("Your message")
    await message.fill("こん")
    await message.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    await expect(page.get_by_role("article")).to_have_count(0)
    await expect(message).to_have_value("こん")


async def test_screen_reader_finds_a_log_and_is_told_the_state(page: Page, site: Site) -> None:
    site.model.say("One two three.").stall(after=3)
    await expect(page.get_by_role("log", name="Conversation")).to_have_count(1)
    await ask(page)
    await expect(page.get_by_role("status")).to_have_text("The answer is on its way.")
    await expect(page.locator(".text")).to_have_text("One two")
    site.model.resume()
    await expect(page.get_by_role("status")).to_have_text("The answer is complete.")


# -------------------------------------------------------------------------------------- scrolling


async def test_reader_at_the_end_stays_there_and_one_above_is_left_alone(
    page: Page, site: Site
) -> None:
    lines = "".join(f"{n}\n" for n in range(100))
    site.model.say([lines, lines, lines]).stall(after=3)
    await ask(page)
    text, log = page.locator(".text"), page.get_by_role("log")
    await expect(text).to_have_text(re.compile("(99.*){2}$", re.DOTALL))
    assert await log.evaluate("(e) => e.scrollHeight - e.scrollTop - e.clientHeight") < 2
    before = await log.evaluate(
        "(e) => new Promise((done) => {"
        " e.addEventListener('scroll', () => done(e.scrollTop), { once: true }); e.scrollTop = 900; })"
    )
    site.model.resume()
    await expect(text).to_have_text(re.compile("(99.*){3}$", re.DOTALL))
    await expect(page.locator(".facts")).to_contain_text("finish_reason")
    assert await log.evaluate("(e) => e.scrollTop") == before

"""The chat page, as a browser shows it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from selenium.webdriver.common.keys import Keys

from tests.fakes import FakeExecutor, replying
from tests.server.browser import Page, browser
from tests.server.harness import ENDINGS, MODEL, TextTokenizer, running

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'"
    "</script>\n\n```html\n<svg onload=alert(1)></textarea>\n```\n\x1b[31mred\u202etxt\x9b"
)
MARKDOWN = """# Two *things*

Some **bold `x**y`** and `<b>`, 2*3*4 = 24.
Same paragraph.

1. one
   - inner
     more
   1. kind
2. two **b**

```python
def f():
    return "**no**"
```
- last
  3) in
- end

5. other"""
AS_HTML = (
    '<h2 dir="auto">Two <em>things</em></h2>'
    '<p dir="auto">Some <strong>bold <code>x**y</code></strong> and <code>&lt;b&gt;</code>, '
    "2*3*4 = 24.\nSame paragraph.</p>"
    '<ol start="1" dir="auto"><li>one<ul><li>inner more</li></ul>'
    '<ol start="1"><li>kind</li></ol></li>'
    "<li>two <strong>b</strong></li></ol>"
    '<pre tabindex="0" dir="ltr"><code>def f():\n    return "**no**"</code></pre>'
    '<ul dir="auto"><li>last<ol start="3"><li>in</li></ol></li><li>end</li></ul>'
    '<ol start="5" dir="auto"><li>other</li></ol>'
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def visit(driver):
    """visit(server) -> Page, which is checked when the test ends."""
    pages = []

    def go(server) -> Page:
        driver.get_log("performance")
        driver.get_log("browser")
        pages.append(Page(driver, server.url))
        return pages[-1]

    yield go
    for page in pages:
        page.check()
        driver.get("about:blank")


def endless() -> FakeExecutor:
    return FakeExecutor(latency=0.01, context=100_000, n_pages=12_500, reply=lambda _: ord("x"))


def test_a_question_is_answered_while_one_looks_on(serve, visit):
    tokenizer = TextTokenizer()
    reply = "Paris is the capital of France. It lies on the Seine."
    page = visit(serve(FakeExecutor(latency=0.03, reply=replying(reply)), tokenizer))
    page.wait(lambda: page["#model"].text == MODEL)
    assert page["#facts"].text.startswith("avx512_vnni · context 1,024 tokens · kt ")
    assert page.driver.title == f"{MODEL} · kt"
    page.type("What is the capital of France?")
    seen = []
    while not page.all('.assistant[aria-busy="false"]'):
        seen += page.texts(".assistant .text")
    assert all(reply.startswith(text) for text in seen)
    assert len({text for text in seen if text}) > 3
    assert all(len(a) <= len(b) for a, b in pairwise(seen))
    assert page.texts(".assistant .text") == [reply]
    assert page.texts(".user") == ["What is the capital of France?"]
    rate, first, count = page.texts(".measures span")
    assert 0 < float(rate.removesuffix(" tokens/s")) < 34  # at least 30 ms a token
    assert 0.03 <= float(first.removeprefix("first token after ").removesuffix(" s")) < 5
    assert count == f"{len(reply) + 1} tokens"
    # The next question carries the whole conversation.
    page.ask("And of Spain?")
    assert tokenizer.rendered[-1]["messages"] == [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "And of Spain?"},
    ]


@pytest.mark.parametrize("way", ["button", "escape", "new chat"])
def test_stopping_an_answer_frees_its_place(serve, visit, way):
    tokenizer = TextTokenizer()
    server = serve(endless(), tokenizer)
    page = visit(server)
    page.type("Go on")
    page.wait(lambda: page.texts(".assistant .text")[0:1] > ["xxx"])
    assert server.engine.stats().running == 1
    assert not page["#send"].is_displayed()
    if way == "escape":
        page["#message"].send_keys(Keys.ESCAPE)
    else:
        page["#stop" if way == "button" else "#new"].click()
    server.wait_until_idle()
    page.wait(lambda: page["#send"].is_displayed())
    assert not page["#stop"].is_displayed()
    if way == "new chat":
        assert page.all(".turn") == []
    else:
        page.wait(lambda: page.texts(".measures span")[-1:] == ["stopped"])
        assert page.texts(".rate")[0].startswith("about ")
        said = page.texts(".assistant .text")[0]
        assert said == "x" * len(said)
    page.type("Once more")
    page.wait(lambda: len(tokenizer.rendered) == 2)
    roles = [message["role"] for message in tokenizer.rendered[1]["messages"]]
    assert roles == (["user"] if way == "new chat" else ["user", "assistant", "user"])
    page["#stop"].click()
    server.wait_until_idle()


def test_what_a_model_writes_stays_text(serve, visit):
    page = visit(serve(FakeExecutor(reply=replying(HOSTILE))))
    text = page.ask("<b>me</b>").get_property("textContent")
    first, _, rest = HOSTILE.partition("\n\n```html\n")
    code, _, last = rest.partition("\n```\n")
    shown = last.replace("\x1b", "␛").replace("\u202e", "\\u202e").replace("\x9b", "\\u009b")
    assert text == first + code + shown
    assert page.texts(".user") == ["<b>me</b>"]
    tags = set(page.run("return [...document.querySelectorAll('#log *')].map((n) => n.tagName)"))
    assert tags <= {"ARTICLE", "DIV", "P", "PRE", "CODE", "SPAN", "BUTTON"}
    assert len(page.all("script")) == 1
    assert page.driver.title == f"{MODEL} · kt"


def test_a_script_that_got_in_would_not_run(serve, visit):
    page = visit(serve(FakeExecutor()))
    page.expected = ["Content Security Policy", "TrustedHTML", "TrustedScript"]
    assert page.run("try { document.body.innerHTML = '<b>' } catch (e) { return e.name }") == (
        "TypeError"
    )
    page.run(
        "const s = document.createElement('div'); document.body.append(s);"
        "s.setAttribute('style', 'color: red'); try { s.setAttribute('onclick', "
        "'document.title = 1') } catch {} s.click();"
        "fetch('http://127.0.0.1:9/').catch(() => document.body.dataset.blocked = 'yes')"
    )
    page.wait(lambda: page["body"].get_attribute("data-blocked") == "yes")
    assert page.driver.title != "1"


def test_markdown(serve, visit):
    page = visit(serve(FakeExecutor(reply=replying(MARKDOWN))))
    answer = page.ask("Show me")
    assert answer.get_property("innerHTML") == AS_HTML
    # Shown piece by piece it becomes the same, and no text brings it down.
    grown = page.run(
        "const parent = document.createElement('div'), growing = new Growing(parent);"
        "for (let i = 1; i <= arguments[0].length; i++) growing.show(arguments[0].slice(0, i));"
        "return parent.innerHTML",
        MARKDOWN,
    )
    assert grown == AS_HTML
    hard = ["**" + "a **" * 20_000, "`" * 30_000 + "``` `` " * 9_000, "- " * 9_000, "*a " * 30_000]
    hard += ["\n".join(" " * 2 * i + "- x" for i in range(500)), "```\n" * 9_001, "\n" * 50_000]
    hard += ["**`a` " * 15_000, "# " + "#" * 3_000 + " " * 50_000 + "x", "- " + " " * 50_000]
    took = page.run(
        "return arguments[0].map((text) => { const start = performance.now(); blocks(text);"
        "return performance.now() - start; })",
        hard,
    )
    assert max(took) < 2000


def test_thoughts_are_folded(serve, visit):
    tokenizer = TextTokenizer("</think>")
    page = visit(
        serve(FakeExecutor(reply=replying("<think>Hm, <i>\n42?</think>It is 42.")), tokenizer)
    )
    assert page.ask("What is it?").text == "It is 42."
    assert page["details.thought"].get_attribute("open") is None
    assert page.texts(".thought div") == ["Hm, <i>\n42?"]
    page[".thought summary"].click()
    assert page[".thought div"].is_displayed()


def test_events_are_read_wherever_the_bytes_are_cut(driver, visit, random_server):
    stream = '\ufeff: note\r\ndata: {"a":"é😀"}\r\n\r\ndata:1\r\ndata: 2\rdata:  3\r\revent: x\n\n'
    stream += "data: \n\ndata: end\n\ndata: cut"
    page = visit(random_server)
    read = page.driver.execute_async_script(
        """
        const [bytes, done] = [new TextEncoder().encode(arguments[0]), arguments[1]];
        (async () => {
          const all = [];
          for (let size = 1; size <= bytes.length; size++) {
            const body = new ReadableStream({ start(control) {
              for (let i = 0; i < bytes.length; i += size)
                control.enqueue(bytes.slice(i, i + size));
              control.close();
            }});
            const found = [];
            for await (const data of eventData(body)) found.push(data);
            all.push(JSON.stringify(found));
          }
          done([...new Set(all)]);
        })();
        """,
        stream,
    )
    assert [json.loads(one) for one in read] == [['{"a":"é😀"}', "1\n2\n 3", "", "end"]]


def test_the_key_is_asked_for(serve, visit):
    server = serve(FakeExecutor(reply=replying("Welcome")), api_keys=["schlüssel 1"])
    page = visit(server)
    page.expected = ["401 (Unauthorized)"]
    page.wait(lambda: page["#key-dialog"].is_displayed())
    assert not page["#key-failure"].is_displayed()
    page["#key"].send_keys("wrong" + Keys.ENTER)
    page.wait(lambda: page["#key-failure"].is_displayed())
    # Who cancels is asked again with the next question, which is not lost.
    page["#key-cancel"].click()
    focused = "return document.activeElement.id"
    page.wait(
        lambda: page.run(focused) == "message"
    )  # the dialog closes, then gives the focus back
    page.type("Hello")
    page.wait(lambda: page["#key-dialog"].is_displayed())
    assert page["#message"].get_property("value") == "Hello"
    page["#key"].send_keys("schlüssel 1" + Keys.ENTER)
    # Then it is asked at once.
    page.wait(lambda: page.texts('.assistant[aria-busy="false"] .text') == ["Welcome"])
    assert page.texts(".user") == ["Hello"]
    assert page["#model"].text == MODEL
    assert not page["#key-dialog"].is_displayed()
    assert page["#message"].get_property("value") == ""
    assert all("schl" not in one["url"] for one in page.requests())


def test_keys_and_settings(serve, visit):
    tokenizer = TextTokenizer()
    page = visit(serve(FakeExecutor(reply=replying("ok")), tokenizer))
    assert not page["#system"].is_displayed()
    page["#settings-button"].click()
    page["#system"].send_keys("Be brief.")
    page["#temperature"].send_keys("0.5")
    page["#message"].send_keys("one" + Keys.SHIFT + Keys.ENTER + Keys.NULL + "two")
    assert page.all(".turn") == []
    page.requests()
    page.ask("")
    assert tokenizer.rendered[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo"},
    ]
    (sent,) = [json.loads(one["postData"]) for one in page.requests() if "postData" in one]
    assert sent["temperature"] == 0.5
    page["#new"].click()
    assert page.all(".turn") == []
    page.ask("three")
    assert [m["content"] for m in tokenizer.rendered[-1]["messages"]] == ["Be brief.", "three"]


def test_a_refusal_is_told_and_the_question_kept(serve, visit):
    page = visit(serve(FakeExecutor(context=64, reply=replying("ok"))))
    page.expected = ["400 (Bad Request)"]
    page.type("x" * 80)
    failure = page.wait(lambda: "".join(page.texts("#log .failure[role=alert]")))
    assert "64" in failure
    box = page["#message"]
    assert box.get_property("value") == "x" * 80
    box.clear()
    assert page.ask("short").text == "ok"
    assert page.all("#log .failure") == []


def test_a_server_that_went_away(visit):
    with running(FakeExecutor(reply=replying("ok"))) as server:
        page = visit(server)
        assert page.ask("Hello").text == "ok"
    ENDINGS.wait()
    page.expected = ["ERR_CONNECTION_REFUSED"]
    page.type("Still there?")
    page.wait(lambda: "does not answer" in "".join(page.texts("#log .failure")))
    assert page["#message"].get_property("value") == "Still there?"


def test_names_and_colours(serve, visit):
    page = visit(serve(FakeExecutor()))
    page["#settings-button"].click()
    shown = page.all(":is(header, section, form.compose) :is(button, input, textarea), #log")
    shown = [node for node in shown if node.is_displayed()]
    assert len(shown) == 7
    assert all(node.accessible_name for node in shown), shown
    page.run("document.getElementById('key-dialog').showModal()")
    shown = page.all("dialog, dialog button, dialog input")
    assert len(shown) == 4
    assert all(node.accessible_name for node in shown), shown

    def ground(scheme: str) -> int:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        colour = page["body"].value_of_css_property("background-color")
        return int(colour.split("(")[1].split(",")[0])

    assert ground("light") > 200
    assert ground("dark") < 50


def test_what_is_served(serve, random_server):
    answer = random_server.http.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    rules = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(rules)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert random_server.http.head("/").status_code == 200
    assert random_server.http.get("/favicon.ico").status_code == 204
    assert random_server.http.get("/", headers={"host": "evil.example"}).status_code == 403
    assert random_server.http.post("/", json={}).status_code == 405
    # With keys the page is open, and nothing below it.
    server = serve(FakeExecutor(), api_keys=["k"])
    assert server.http.get("/").content == answer.content
    for path in ("/v1/models", "/index.html", "/favicon.ico/"):
        assert server.http.get(path).status_code == 401

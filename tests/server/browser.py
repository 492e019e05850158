"""The chat page in a real browser: Debian's chromium, driven by chromedriver."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

FLAGS = (
    "--headless",
    "--no-sandbox",  # it cannot be set up by root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1000,800",
)


@contextmanager
def browser(profile: Path) -> Iterator[Chrome]:
    """A browser with an empty `profile`. Skips, in CI fails, where there is none."""
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        missing = "there is no browser (Debian: chromium, chromium-driver)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = ChromeOptions()
    options.binary_location = programs[0]
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(programs[1]))
    try:
        driver.set_script_timeout(20)
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of one server."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.expected: list[str] = []  # parts of console messages that a test means to cause
        driver.get(url)

    def __getitem__(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return [node.get_property("textContent") for node in self.all(selector)]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], Any], seconds: float = 10) -> Any:
        """What `condition` gives as soon as that is something."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, self.run("return document.body.innerText")
            time.sleep(0.02)
        return found

    def type(self, text: str) -> None:
        """Types a question; Enter sends it."""
        self["#message"].send_keys(text + Keys.ENTER)

    def ask(self, text: str) -> WebElement:
        """The complete answer to `text`."""
        done = '.assistant[aria-busy="false"]'
        before = self.all(done)[-1:]
        self.type(text)
        self.wait(lambda: self.all(done)[-1:] not in ([], before))
        return self.all(done)[-1].find_element(By.CSS_SELECTOR, ".text")

    def requests(self) -> list[dict[str, Any]]:
        """Since the last call: what the page asked of any server."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        sent = [one for one in sent if not one["documentURL"].startswith("chrome:")]  # its own
        for one in sent:
            parts = urlsplit(one["request"]["url"])
            assert f"{parts.scheme}://{parts.netloc}" == self.url, one["request"]["url"]
        return [one["request"] for one in sent]

    def check(self) -> None:
        """Nothing went to another origin, and the console has nothing unexpected."""
        self.requests()
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        unexpected = [m for m in said if not any(part in m for part in self.expected)]
        assert not unexpected, unexpected

"""A headless Chromium for the tests of the console, or the reason why there is none.

Debian's chromium-driver and python3-selenium; nothing is downloaded."""

import os
import shutil
import tempfile

from harness import PATIENCE


def missing():
    """Why the console cannot be tested here, or None."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "python3-selenium is not installed"
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            return f"{program} is not installed (Debian: chromium-driver)"
    return None


class Browser:
    """driver: selenium's. Its profile lies in a folder of its own."""

    def __init__(self, width=1180, height=1000, dark=False):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        self.folder = tempfile.mkdtemp(prefix="lensd-browser-")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--no-first-run", "--disable-extensions", "--disable-background-networking",
                     "--force-prefers-reduced-motion", "--hide-scrollbars",
                     f"--user-data-dir={self.folder}", f"--window-size={width},{height}"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        try:
            self.driver = webdriver.Chrome(service=Service(shutil.which("chromedriver"),
                                                           log_path=os.devnull), options=options)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.driver.set_page_load_timeout(PATIENCE)
        self.driver.set_script_timeout(PATIENCE)
        self.look(dark)

    def look(self, dark):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def size(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def picture(self, path, width, height):
        """The top of the page as PNG."""
        import base64
        self.size(width, height)
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        self.driver.quit()
        shutil.rmtree(self.folder, ignore_errors=True)

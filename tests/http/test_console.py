"""The console in a real browser: photos dropped, pasted and picked, digits drawn by pointer and by keys,
errors, the live charts, the API key, the keyboard. LENSD_PICTURES names a folder for screenshots."""

import base64
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
import unittest
from urllib.parse import parse_qs, urlsplit

import browser
import harness
import small_onnx
import test_doors
from harness import DIGITS, read
from test_pipelines import write_page

WAIT = harness.PATIENCE
PICTURES = os.environ.get("LENSD_PICTURES", "")
SEVEN = os.path.realpath(os.path.join(DIGITS, "drawn", "7_paper.png"))
THREE = os.path.realpath(os.path.join(DIGITS, "drawn", "3_canvas.png"))

# A photo arrives as from the desktop or the clipboard: (kind of event, [(name, type, base64)]).
ARRIVE = """
const [kind, files] = arguments;
const data = new DataTransfer();
for (const [name, type, text] of files) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  data.items.add(new File([bytes], name, { type }));
}
if (kind === "paste") {
  document.body.dispatchEvent(new ClipboardEvent("paste", { bubbles: true, clipboardData: data }));
} else {
  for (const type of ["dragover", "drop"]) {
    document.body.dispatchEvent(new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer: data }));
  }
}
"""


class Console(unittest.TestCase):
    arguments = ()

    @classmethod
    def setUpClass(cls):
        why = browser.missing()
        if why:
            raise unittest.SkipTest(why)
        cls.server = harness.Server(*cls.arguments)
        try:
            cls.browser = browser.Browser()
        except BaseException:
            cls.server.stop()
            raise
        cls.driver = cls.browser.driver

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        code, log = cls.server.stop()
        if code != 0:
            raise AssertionError(f"lensd ended with {code}:\n{log[-4000:]}")

    def setUp(self):
        self.driver.get(self.url())
        self.wait(lambda: self.find("#state").text == "ready", "the state")

    def tearDown(self):
        self.check_console()

    def check_console(self, *allowed):
        """Nothing was logged: no script error, nothing that the content policy refused."""
        log = [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"
               and "Failed to load resource" not in entry["message"]]
        self.assertEqual([e["message"] for e in log if not any(w in e["message"] for w in allowed)], [])

    def url(self):
        return f"http://127.0.0.1:{self.server.port}/"

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def texts(self, selector):
        return [found.text for found in self.driver.find_elements("css selector", selector)]

    def wait(self, condition, what):
        from selenium.common.exceptions import StaleElementReferenceException, NoSuchElementException
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            try:
                found = condition()
            except (StaleElementReferenceException, NoSuchElementException):
                found = None
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"no {what}; the page says: {self.find('body').text[:2000]!r}")

    def view(self, name):
        self.find(f"#tab-{name}").click()
        self.assertTrue(self.find(f"#view-{name}").is_displayed())

    def arrive(self, kind, *files):
        self.driver.execute_script(ARRIVE, kind, [
            [name, media, base64.b64encode(data).decode()] for name, media, data in files])

    def first_label(self):
        return self.wait(lambda: self.texts("#answer .bars .label"), "labels")[0]

    def keys(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains
        actions = ActionChains(self.driver, duration=0)
        for key in keys:
            actions.send_keys(key)
        actions.perform()

    def picture(self, name, width=1180, height=560):
        """A screenshot for the documentation, where a folder for them is named."""
        if PICTURES:
            self.wait(lambda: self.texts("#figures dd"), "figures")
            self.driver.execute_script("scrollTo(0, 0); document.activeElement.blur()")
            self.browser.picture(os.path.join(PICTURES, f"console-{name}.png"), width, height)


class Photos(Console):
    def test_drop(self):
        self.arrive("drop", ("a seven's.png", "image/png", read(SEVEN)))
        self.assertEqual(self.first_label(), "7")
        self.assertEqual(len(self.texts("#answer .bars li")), 5)
        self.assertRegex(self.texts("#answer .bars .value")[0], r"^9\d\.\d %$")
        phases = " ".join(self.texts("#answer .legend li"))
        for phase in ("decode", "preprocess", "queue", "forward"):
            self.assertRegex(phases, phase + r" [\d.]+ ms")
        self.assertIn("digits on cpu, 280 × 280 pixels", self.find("#answer").text)
        self.assertTrue(self.driver.execute_script(
            "return document.querySelector('#pictures img').naturalWidth") == 280)
        # The line that is shown does the same in a real shell.
        line = self.find("#curl-text").text
        with open(os.path.join(self.folder(), "a seven's.png"), "wb") as file:
            file.write(read(SEVEN))
        ended = subprocess.run(["bash", "-c", line.replace("curl ", "curl -s ", 1)], cwd=self.folder(),
                               stdout=subprocess.PIPE, text=True, timeout=WAIT)
        self.assertIn('"label":"7"', ended.stdout, line)

    def folder(self):
        return self.server.folder

    def test_paste(self):
        self.arrive("paste", ("image.png", "image/png", read(THREE)))
        self.assertEqual(self.first_label(), "3")

    def test_pick_several(self):
        self.find("#file").send_keys(f"{SEVEN}\n{THREE}\n{os.path.realpath(__file__)}")
        self.wait(lambda: len(self.texts("#answer .result")) == 3, "three results")
        self.assertEqual(self.texts("#answer .result .bars li:first-child .label"), ["7", "3"])
        self.assertEqual(self.texts("#answer .result h3"),
                         ["7_paper.png", "3_canvas.png", "test_console.py"])
        self.assertIn("not a supported image", self.texts("#answer .result .error")[0])
        self.assertRegex(self.find("#curl-text").text, r"^curl -F image=@7_paper\.png -F ")

    def test_error_is_a_sentence(self):
        self.arrive("drop", ("notes.jpg", "image/jpeg", b"no picture at all, only words"))
        text = self.wait(lambda: self.texts("#answer .error"), "an error")[0]
        self.assertTrue(text.startswith("That did not work. "), text)
        self.assertNotIn("415", text)
        self.assertIn("this is not a supported image: it looks like plain text", text)
        self.assertEqual(self.find("#answer .error").get_attribute("role"), "alert")
        self.picture("error")

    def test_pictures_enlarge(self):
        from selenium.webdriver.common.keys import Keys
        self.find("#file").send_keys(f"{SEVEN}\n{THREE}")
        self.wait(lambda: len(self.texts("#answer .result")) == 2, "two results")

        def large():
            return self.texts(".picture.large figcaption span")
        self.find("#pictures button").click()
        self.assertEqual(large(), ["7_paper.png"])
        whole = self.driver.execute_script("return [innerWidth, innerHeight]")
        box = self.find(".picture.large").rect
        self.assertEqual([box["width"], box["height"]], whole)
        self.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        self.assertEqual(large(), ["3_canvas.png"])
        self.keys(Keys.ARROW_LEFT, Keys.ESCAPE)
        self.assertEqual(large(), [])

    def test_answer_as_json_and_picture(self):
        self.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": self.folder()})
        self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
        self.first_label()
        self.find("#answer .raw summary").click()
        self.assertEqual(json.loads(self.find("#answer .raw pre").text)["predictions"][0]["label"], "7")
        self.find('#pictures button[aria-label^="Save"]').click()

        def saved():
            return [name for name in os.listdir(self.folder()) if re.fullmatch(r"seven-lensd\.(jpeg|png)", name)]
        name = self.wait(saved, "the picture")[0]
        self.assertIn(read(os.path.join(self.folder(), name))[:4], (b"\x89PNG", b"\xff\xd8\xff\xe0"))

    def test_docs_try_a_request(self):
        self.driver.get(self.url() + "docs")
        self.find('form[action="predict"] input').send_keys(SEVEN)
        self.find('form[action="predict"] button').click()
        # not the text of an element, which may leave the page while it is read
        self.wait(lambda: '"label":"7"' in self.driver.page_source, "an answer")
        self.driver.get(self.url())  # for tearDown

    def test_labels_wanted(self):
        self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
        self.first_label()
        box = self.find("#top-k")
        box.clear()
        box.send_keys("2\t")
        self.wait(lambda: len(self.texts("#answer .bars li")) == 2, "two labels")
        self.assertIn("top_k=2", self.find("#curl-text").text)

    def test_markup_in_names_stays_text(self):
        name = "<img src=x onerror=alert(1)>.png"
        self.arrive("drop", (name, "image/png", read(SEVEN)))
        self.first_label()
        self.assertEqual(self.find("#pictures figcaption span").text, name)
        self.assertIn(f"'@{name}'", self.find("#curl-text").text)

    def test_copy(self):
        self.driver.execute_cdp_cmd("Browser.grantPermissions", {
            "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
        self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
        self.first_label()
        self.find("#copy").click()
        self.wait(lambda: self.find("#copy").text == "Copied", "the word Copied")
        copied = self.driver.execute_async_script(
            "const done = arguments[0]; navigator.clipboard.readText().then(done, (e) => done(String(e)))")
        self.assertEqual(copied, self.find("#curl-text").text)


class Drawing(Console):
    def setUp(self):
        super().setUp()
        self.wait(lambda: self.find("#how").is_displayed(), "the choice to draw")

    def test_draw_with_the_pointer(self):
        from selenium.webdriver.common.action_chains import ActionChains
        self.find("#how label:nth-of-type(2)").click()
        pad = self.find("#pad")
        actions = ActionChains(self.driver, duration=60).move_to_element_with_offset(pad, -70, -85)
        actions.click_and_hold()
        for x, y in ((0, -85), (65, -85), (30, 0), (0, 90)):
            actions.move_to_element_with_offset(pad, x, y)
        actions.release().perform()
        self.assertEqual(self.first_label(), "7")
        self.assertIn("digit.png", self.find("#curl-text").text)
        self.picture("draw")
        self.find("#clear").click()
        white = self.driver.execute_script(
            "const c = document.querySelector('#pad'); return c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data.every((v) => v === 255)")
        self.assertTrue(white)

    def test_draw_with_keys(self):
        """A one, by keyboard alone: from the top of the page to the answer."""
        from selenium.webdriver.common.keys import Keys
        body = self.find("body")
        body.send_keys(Keys.TAB)
        for _ in range(20):
            if self.driver.switch_to.active_element.get_attribute("name") == "how":
                break
            self.keys(Keys.TAB)
        self.keys(Keys.ARROW_RIGHT)
        self.assertTrue(self.find("#draw").is_displayed())
        for _ in range(20):
            if self.driver.switch_to.active_element.get_attribute("id") == "pad":
                break
            self.keys(Keys.TAB)
        self.assertTrue(self.find(".pen").is_displayed())
        self.keys(*([" "] + [Keys.ARROW_DOWN] * 17 + [" "]))
        self.assertEqual(self.first_label(), "1")
        self.keys(Keys.DELETE)
        self.keys(Keys.TAB)
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "clear")


class Watching(Console):
    def load(self, end):
        """Some clients until the event."""
        image = read(SEVEN)

        def work(_):
            while not end.is_set():
                self.server.predict(image)
        return [threading.Thread(target=work, args=(i,), daemon=True) for i in range(3)]

    def figure(self, name):
        for box in self.driver.find_elements("css selector", "#figures div"):
            if box.find_element("css selector", "dt").text == name:
                return box.find_element("css selector", "dd").text
        return None

    def test_charts_live(self):
        self.view("traffic")
        end = threading.Event()
        clients = self.load(end)
        for client in clients:
            client.start()
        try:
            self.wait(lambda: re.match(r"[\d,.]+$", self.figure("Images/s") or "") and
                      float(self.figure("Images/s").replace(",", "")) > 0, "a rate")
            self.wait(lambda: "ms" in (self.figure("p99") or ""), "a percentile")
            self.wait(lambda: "forward" in " ".join(self.texts("#charts .legend")), "phases")
            paths = self.driver.execute_script(
                "return [...document.querySelectorAll('#charts path')].map((p) => p.getAttribute('d'))")
            self.assertTrue(any("L" in path and "NaN" not in path for path in paths), paths)
            for path in paths:
                self.assertNotIn("NaN", path)
            label = self.find("#charts svg").get_attribute("aria-label")
            self.assertRegex(label, r"^Throughput, images/s, now: answered [\d,.]+")

            def is_near():
                """The figure is what the server counts, once the machine keeps its pace for some seconds."""
                before, begin = self.server.metric("lensd_images_total"), time.monotonic()
                time.sleep(2)
                rate = (self.server.metric("lensd_images_total") - before) / (time.monotonic() - begin)
                return 0.3 * rate < float(self.figure("Images/s").replace(",", "")) < 3 * rate
            self.wait(is_near, "a rate near the server's own")
        finally:
            end.set()
            for client in clients:
                client.join(WAIT)
        self.find("#pause").click()
        self.assertEqual(self.find("#pause").get_attribute("aria-pressed"), "true")

        def stands_still():  # a reading that was under way may still be drawn
            path = "return document.querySelector('#charts path').getAttribute('d')"
            before = self.driver.execute_script(path)
            time.sleep(1.5)
            return self.driver.execute_script(path) == before
        self.wait(stands_still, "an end of the drawing")

    def test_devices_and_models(self):
        self.view("models")
        self.wait(lambda: self.texts("#devices h3"), "devices")
        self.assertTrue(self.texts("#devices h3")[0].startswith("cpu"))
        self.find("#devices summary").click()
        rows = self.texts("#devices tbody tr")
        self.assertTrue(rows[0].startswith("1 "), rows)
        self.assertIn("digits (default)", self.find("table").text + " ".join(self.texts("td")))

        # The task and the labels of each model.
        self.assertIn("classification", self.find("table").text)
        self.assertIn("digits: classification; labels", self.texts("#labels summary"))
        self.find("#labels summary").click()
        self.wait(lambda: self.find("#labels p").text == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9", "labels")

    def test_tabs(self):
        """One view at a time, by pointer, keys and address; the whole page fits a screen or two."""
        from selenium.webdriver.common.keys import Keys
        views = ("try", "models", "traffic", "api")

        def shown():
            return [name for name in views if self.find(f"#view-{name}").is_displayed()]
        self.assertEqual(shown(), ["try"])
        self.view("models")
        self.assertEqual(shown(), ["models"])
        self.assertTrue(self.driver.current_url.endswith("#models"))
        self.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        self.assertEqual(shown(), ["api"])
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "tab-api")
        self.assertEqual([self.find(f"#tab-{name}").get_attribute("aria-selected") for name in views],
                         ["false", "false", "false", "true"])
        self.assertEqual(self.find('#view-api a[href="docs"]').text, "/docs")
        self.assertFalse(self.find("#view-api details").get_attribute("open"))
        self.assertLess(self.driver.execute_script("return document.documentElement.scrollHeight"), 2000)
        self.find("#view-api summary").click()
        self.assertTrue(self.find("#view-api details").get_attribute("open"))
        self.driver.refresh()
        self.wait(lambda: shown() == ["api"], "the view of the address")
        # A photo brings the view that shows it.
        self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
        self.assertEqual(self.first_label(), "7")
        self.assertEqual(shown(), ["try"])
        self.assertLess(self.driver.execute_script("return document.documentElement.scrollHeight"), 1500)

    def test_dark_and_light(self):
        def paper():
            return self.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        light = paper()
        self.browser.look(dark=True)
        self.wait(lambda: paper() != light, "a dark page")
        self.wait(lambda: self.find("#theme").text == "Light", "the word on the button")
        self.find("#theme").click()
        self.wait(lambda: paper() == light, "a light page")
        self.driver.execute_script("localStorage.clear()")
        self.browser.look(dark=False)

    def test_narrow(self):
        self.browser.size(360, 800)
        try:
            self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
            self.first_label()
            self.assertLessEqual(self.driver.execute_script(
                "return document.documentElement.scrollWidth"), 360)
            self.picture("narrow", 360, 900)
        finally:
            self.browser.size(1180, 1000)

    def test_everything_has_a_name(self):
        """What a screen reader would read out: no control without a name, one h1, levels in order."""
        self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
        self.first_label()
        tree = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        wanted = {"button", "textbox", "combobox", "spinbutton", "radio", "img", "image", "application"}
        seen = set()
        for node in tree:
            role = node.get("role", {}).get("value")
            if node.get("ignored") or role not in wanted:
                continue
            seen.add(role)
            self.assertTrue(node.get("name", {}).get("value"), node)
        self.assertTrue({"button", "spinbutton", "radio", "image"} <= seen, seen)
        levels = [int(tag[1]) for tag in self.driver.execute_script(
            "return [...document.querySelectorAll('h1, h2, h3')].map((h) => h.tagName)")]
        self.assertEqual(levels.count(1), 1)
        for before, after in zip(levels, levels[1:]):
            self.assertLessEqual(after, before + 1)

    def test_contrast(self):
        """Text on what it stands on: at least 4.5 to 1, light and dark (WCAG AA)."""
        script = """
        const seen = [];
        const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
        const light = (c) => c.slice(0, 3).map((v) => v / 255)
          .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        for (const node of document.querySelectorAll('body *')) {
          if (!node.offsetParent || ![...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
          let back = node;
          while (back && (rgb(getComputedStyle(back).backgroundColor)[3] ?? 1) === 0) back = back.parentElement;
          const [a, b] = [light(rgb(getComputedStyle(node).color)),
                          light(rgb(getComputedStyle(back || document.body).backgroundColor))];
          const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          if (ratio < 4.5) seen.push([node.tagName, node.className, node.textContent.slice(0, 30), ratio]);
        }
        return seen;"""
        self.arrive("drop", ("notes.jpg", "image/jpeg", b"only words, nothing else in here"))
        self.wait(lambda: self.texts("#answer .error"), "an error")
        for dark in (False, True):
            self.browser.look(dark)
            self.assertEqual(self.driver.execute_script(script), [])
        self.browser.look(False)

    def test_pictures(self):
        """Screenshots for the documentation, where a folder for them is named."""
        if not PICTURES:
            self.skipTest("LENSD_PICTURES names no folder")
        end = threading.Event()
        clients = self.load(end)
        for client in clients:
            client.start()
        time.sleep(90)
        self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
        self.first_label()
        for name, dark, view, height in (("light", False, "try", 690), ("dark", True, "traffic", 850)):
            self.browser.look(dark)
            self.view(view)
            self.picture(name, height=height)
        self.browser.look(False)
        end.set()
        for client in clients:
            client.join(WAIT)
        self.browser.size(1180, 1000)


def segmenter(path):
    """Class 1 where the picture is light."""
    small_onnx.write(
        path, [small_onnx.node("Conv", ["image", "w", "b"], ["map"])],
        [small_onnx.floats("w", (2, 3, 1, 1), [0, 0, 0, 1, 1, 1]), small_onnx.floats("b", (2,), [0, 0])],
        [small_onnx.tensor_info("image", "N", 3, 64, 64)],
        [small_onnx.tensor_info("map", "N", 2, 64, 64)])


class Finding(Console):
    """Detectors and segmenters: what they find, over the picture."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-console-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.model(cls.folder)
        with open(os.path.join(cls.folder, "labels.txt"), "w", encoding="utf-8") as file:
            file.write("a cat\na dog\n")
        cls.arguments = (cls.folder,)
        super().setUpClass()

    def setUp(self):
        super().setUp()
        # The page asks for the models on its own; a photo before it knows them would get an error.
        self.wait(lambda: not self.find("#top-k").is_displayed(), "what the page knows of the model")


class Boxes(Finding):
    @classmethod
    def model(cls, folder):
        # Six lines of the 84 candidates of 64 x 64: centre, size, the scores of two classes (YOLOv8 and later).
        candidates = [(32, 32, 16, 24, .05, .9), (33, 32, 16, 24, .05, .6), (10, 10, 8, 8, .1, .1),
                      (50, 20, 10, 10, .55, .0)] + [(5, 5, 2, 2, 0, 0)] * 80
        small_onnx.always(os.path.join(folder, "model.onnx"),
                          [("found", (6, 84), [c[line] for line in range(6) for c in candidates])])

    def test_boxes(self):
        self.arrive("drop", ("pets.png", "image/png", harness.png(400, 300, 40)))
        self.wait(lambda: self.texts("#answer .found"), "boxes")
        self.assertEqual(self.texts("#answer .found"), ["2 boxes found"])
        self.assertEqual(self.texts("#answer .bars li"), ["a dog\n90.0 %", "a cat\n55.0 %"])
        box = self.driver.execute_script(
            "const r = document.querySelector('#pictures svg rect');"
            "return ['x', 'y', 'width', 'height'].map((n) => Number(r.getAttribute(n)))")
        # The long side went to 64, with 8 pixels above and below: undone, in pixels of the picture.
        scale = 64 / 400
        expected = [(32 - 8) / scale, (32 - 12 - 8) / scale, 16 / scale, 24 / scale]
        for found, wanted in zip(box, expected):
            self.assertAlmostEqual(found, wanted, delta=0.5)
        # The ground of a label is as wide as its text.
        grounds = self.driver.execute_script("""
            return [...document.querySelectorAll('#pictures svg text')].map((text) => {
              const ground = text.previousSibling.getBBox(), box = text.getBBox();
              return [box.x - ground.x, ground.x + ground.width - box.x - box.width, ground.width, ground.x + ground.width]; });""")
        self.assertEqual(len(grounds), 2)
        for left, right, width, end in grounds:
            self.assertGreater(left, 0)
            self.assertGreater(right, 0)
            self.assertLess(right, 0.1 * width)
            self.assertLessEqual(end, 400.01)
        self.picture("boxes")

    def test_thresholds_are_sliders(self):
        from selenium.webdriver.common.keys import Keys
        self.wait(lambda: self.find("#confidence").is_displayed(), "the sliders")
        self.assertFalse(self.find("#top-k").is_displayed())
        self.assertEqual([self.find(f"#{name}").get_attribute("value") for name in ("confidence", "iou")], ["0.25", "0.7"])
        self.arrive("drop", ("pets.png", "image/png", harness.png(400, 300, 40)))
        self.wait(lambda: self.texts("#answer .found") == ["2 boxes found"], "two boxes")
        self.assertNotIn("confidence", self.find("#curl-text").text)
        for name, key, boxes in (("confidence", Keys.END, "0 boxes"), ("confidence", Keys.HOME, "3 boxes"),
                                 ("iou", Keys.END, "4 boxes")):
            self.find(f"#{name}").send_keys(key)
            self.wait(lambda: self.texts("#answer .found") == [f"{boxes} found"], boxes)
        self.assertIn("confidence=0&iou=1", self.find("#curl-text").text)
        self.assertEqual(self.texts("output"), ["0", "1"])


class Beside(Console):
    """A detector is the model that is chosen, and digits are drawn."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-console-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        os.mkdir(os.path.join(cls.folder, "boxes"))
        Boxes.model(os.path.join(cls.folder, "boxes"))
        shutil.copytree(os.path.join(harness.ROOT, "models", "digits"), os.path.join(cls.folder, "digits"))
        os.mkdir(os.path.join(cls.folder, "numbers"))
        with open(os.path.join(cls.folder, "numbers", "pipeline.json"), "w", encoding="utf-8") as file:
            json.dump({"stages": [{"model": "boxes"}, {"model": "digits"}]}, file)
        cls.arguments = ("--models", cls.folder, "--default-model", "boxes", "--watch")
        super().setUpClass()

    def test_a_drawing_has_no_boxes(self):
        from selenium.webdriver.common.action_chains import ActionChains
        self.wait(lambda: self.find("#how").is_displayed(), "the choice to draw")
        self.assertEqual(self.find("#model").get_attribute("value"), "boxes")
        self.find("#how label:nth-of-type(2)").click()
        actions = ActionChains(self.driver, duration=60).move_to_element_with_offset(self.find("#pad"), 0, -90)
        actions.click_and_hold().move_to_element_with_offset(self.find("#pad"), 0, 90).release().perform()
        self.assertEqual(self.first_label(), "1")
        self.assertEqual(self.texts("#answer .found"), [])

    def test_docs_try_a_model(self):
        self.driver.get(self.url() + "docs")
        form = 'form[action="predict"]:has(input[name="model"])'
        self.find(f'{form} input[name="image"]').send_keys(SEVEN)
        self.find(f'{form} input[name="model"]').send_keys("digits")
        self.find(f"{form} button").click()
        self.wait(lambda: '"model":"digits"' in self.find("body").text, "an answer")
        self.driver.get(self.url())  # for tearDown

    def test_the_table_follows_the_models(self):
        self.view("models")
        more = os.path.join(self.folder, "more")

        def names():
            return self.texts("#view-models .facts td:first-child")
        self.wait(lambda: names() == ["boxes (default)", "digits", "numbers"], "the models")
        shutil.copytree(os.path.join(self.folder, "digits"), more)
        self.wait(lambda: "more" in names(), "the model that came")
        shutil.rmtree(more)
        self.wait(lambda: "more" not in names(), "the table without it")

    def test_what_the_next_stage_says_follows_the_label(self):
        from selenium.webdriver.support.ui import Select
        self.wait(lambda: len(self.texts("#model option")) == 3, "the models")
        Select(self.find("#model")).select_by_value("numbers")
        self.arrive("drop", ("pets.png", "image/png", harness.png(400, 300, 40)))
        for bar, score in zip(self.wait(lambda: self.texts("#answer .bars li"), "boxes"), ("90.0", "55.0")):
            self.assertRegex(bar, rf"^class [01]: \d\n{score} %$")


class Pages(Console):
    """A pipeline that reads pages."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-console-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        write_page(cls.folder)
        cls.arguments = (os.path.join(cls.folder, "page"),)
        super().setUpClass()

    def test_lines(self):
        self.wait(lambda: not self.find("#top-k").is_displayed(), "what the page knows of the model")
        self.arrive("drop", ("page.png", "image/png", harness.png(128, 128)))
        found = self.wait(lambda: self.texts("#answer .found"), "the text")
        self.assertEqual(found, ["aa 字 aa 字\naa 字\n\naa 字", "4 boxes found"])
        bars = self.texts("#answer .bars li")
        self.assertEqual(len(bars), 4)
        for bar in bars:
            self.assertRegex(bar, r"^aa 字\n\d+\.\d %$")
        self.assertEqual(len(self.driver.find_elements("css selector", "#pictures svg polygon")), 4)


class Areas(Finding):
    @classmethod
    def model(cls, folder):
        segmenter(os.path.join(folder, "model.onnx"))

    def test_areas(self):
        from PIL import Image
        picture = Image.new("RGB", (200, 200), (0, 0, 0))
        picture.paste((255, 255, 255), (100, 0, 200, 200))
        data = io.BytesIO()
        picture.save(data, "PNG")
        self.arrive("drop", ("halves.png", "image/png", data.getvalue()))
        self.wait(lambda: self.texts("#answer .found"), "areas")
        self.assertEqual(sorted(self.texts("#answer .bars li")), ["a cat\n50.0 %", "a dog\n50.0 %"])
        # Painted in two colours: what is dark, and what is light.
        paint = self.driver.execute_script(
            "const c = document.querySelector('#pictures canvas'), d = c.getContext('2d');"
            "return [[50, 100], [20, 3], [150, 100], [198, 3]].map(([x, y]) => [...d.getImageData(x, y, 1, 1).data].join())")
        self.assertEqual(paint[0], paint[1])
        self.assertEqual(paint[2], paint[3])
        self.assertNotEqual(paint[0], paint[2])
        self.assertTrue(all(p.endswith(",150") for p in paint), paint)
        self.picture("areas")


class Marks(Console):
    """SAM: what is marked in the photo is cut out."""

    arguments = (os.path.join(harness.ROOT, "tests", "data", "sam", "sam"),)
    PHOTO = os.path.join(harness.ROOT, "tests", "data", "sam", "200x150.png")

    def setUp(self):
        super().setUp()
        self.wait(lambda: not self.find("#top-k").is_displayed(), "what the page knows of the model")
        self.arrive("drop", ("a room.png", "image/png", read(self.PHOTO)))
        self.wait(lambda: self.find("#pictures .prompt").is_displayed(), "the picture")

    def on_screen(self, *point):
        """From the middle of the picture, as the pointer's actions want it."""
        return self.driver.execute_script(
            "const svg = document.querySelector('.prompt'), r = svg.getBoundingClientRect();"
            "const p = new DOMPoint(...arguments).matrixTransform(svg.getScreenCTM());"
            "return [Math.round(p.x - r.x - r.width / 2), Math.round(p.y - r.y - r.height / 2)]", *point)

    def pointer(self):
        from selenium.webdriver.common.action_chains import ActionChains
        return ActionChains(self.driver, duration=60)

    def marks(self):
        """What the curl line says: [(x, y, label) …], the box."""
        query = parse_qs(urlsplit(shlex.split(self.find("#curl-text").text)[-1]).query)
        points = [tuple(map(int, point.split(","))) for point in query.get("points", [""])[0].split(";") if point]
        return points, [int(side) for side in query.get("box", [""])[0].split(",") if side]

    def assert_near(self, found, wanted):
        self.assertEqual(len(found), len(wanted))
        for a, b in zip(found, wanted):
            self.assertAlmostEqual(a, b, delta=1)

    def assert_shown(self, points, box=()):
        """The marks are these, and the picture has the mask that the server makes of them."""
        def is_there():
            found = self.marks() if self.find("#curl").is_displayed() else ([], [])
            return (len(found[0]), bool(found[1])) == (len(points), bool(box)) and self.find("#answer").get_attribute("aria-busy") == "false"
        self.wait(is_there, "an answer to the marks")
        found, corners = self.marks()
        for a, b in zip(found, points):
            self.assert_near(a[:2], b[:2])
            self.assertEqual(a[2], b[2])
        self.assert_near(corners, box)
        path = "/predict?points=" + ";".join(",".join(map(str, point)) for point in found) if found else "/predict?"
        if corners:
            path += "&box=" + ",".join(map(str, corners))
        area = self.server.predict(read(self.PHOTO), path + "&max_detections=1").json()["predictions"][0]["area"]
        self.assertEqual(self.texts("#answer .found"), [f"The mask has {area} of 30000 pixels"])
        painted = self.driver.execute_script(
            "const all = document.querySelectorAll('#pictures canvas'), c = all[0];"
            "return [all.length, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((v, i) => i % 4 === 3 && v).length]")
        self.assertEqual(painted, [1, area])

    def test_pointer(self):
        from selenium.webdriver.common.keys import Keys
        self.assertIn("once something is marked", self.find("#answer").text)
        self.assertTrue(self.find("#prompt-help").is_displayed())
        self.assertFalse(self.find("#curl").is_displayed())
        svg = self.find(".prompt")
        self.pointer().move_to_element_with_offset(svg, *self.on_screen(60, 50)).click().perform()
        self.assert_shown([(60, 50, 1)])
        self.pointer().move_to_element_with_offset(svg, *self.on_screen(150, 100)).key_down(Keys.SHIFT).click().key_up(Keys.SHIFT).perform()
        self.assert_shown([(60, 50, 1), (150, 100, 0)])
        self.pointer().move_to_element_with_offset(svg, *self.on_screen(190, 140)).click_and_hold().move_to_element_with_offset(
            svg, *self.on_screen(20, 30)).release().perform()
        self.assert_shown([(60, 50, 1), (150, 100, 0)], [20, 30, 190, 140])
        self.assertEqual([len(self.driver.find_elements("css selector", f".prompt {what}")) for what in (".in", ".out", "rect")], [1, 1, 1])
        self.assertEqual(self.texts(".picture.large"), [], "a click marks, and does not enlarge")
        self.picture("marks", height=690)
        self.browser.size(1180, 1000)
        self.find('#pictures button[aria-label^="Clear"]').click()
        self.wait(lambda: "once something is marked" in self.find("#answer").text, "no marks")

    def test_keys(self):
        from selenium.webdriver.common.keys import Keys
        self.find('#pictures button[aria-label^="Enlarge"]').send_keys(Keys.SHIFT + Keys.TAB)
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("role"), "application")
        self.keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ENTER)
        self.assert_shown([(92, 71, 1)])
        self.keys(Keys.ARROW_RIGHT)
        self.pointer().key_down(Keys.SHIFT).send_keys(Keys.ARROW_DOWN, Keys.ENTER).key_up(Keys.SHIFT).perform()
        self.assert_shown([(92, 71, 1), (96, 72, 0)])
        self.keys("b", Keys.ARROW_DOWN, Keys.ARROW_RIGHT, "b")
        self.assert_shown([(92, 71, 1), (96, 72, 0)], [96, 72, 100, 76])
        self.keys(Keys.BACKSPACE)
        self.assert_shown([(92, 71, 1), (96, 72, 0)])
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("role"), "application", "an answer keeps the focus")
        self.keys(Keys.DELETE)
        self.wait(lambda: "once something is marked" in self.find("#answer").text, "no marks")

    def test_another_photo_has_no_marks(self):
        self.pointer().move_to_element(self.find(".prompt")).click().perform()
        self.assert_shown([(100, 75, 1)])
        line = self.find("#curl-text").text
        with open(os.path.join(self.server.folder, "a room.png"), "wb") as file:
            file.write(read(self.PHOTO))
        ended = subprocess.run(["bash", "-c", line.replace("curl ", "curl -s ", 1)], cwd=self.server.folder, stdout=subprocess.PIPE,
                               text=True, timeout=WAIT)
        self.assertIn('"rle"', ended.stdout, line)
        self.arrive("drop", ("b.png", "image/png", harness.png(40, 30)), ("c.png", "image/png", harness.png(30, 40)))
        self.wait(lambda: self.texts("#pictures figcaption span") == ["b.png"], "the first photo alone")
        self.wait(lambda: self.driver.find_elements("css selector", ".prompt .cursor"), "the picture")
        self.assertEqual(self.driver.find_elements("css selector", ".prompt circle"), [])
        self.assertIn("once something is marked", self.find("#answer").text)


class Lines(test_doors.Doors):
    """How clients of other servers call a model: each line that the page shows is run."""

    # Parts of the APIs' names.
    PHOTO = {"V2, Triton", "V2): inputs", "KServe", "TorchServe"}
    BOXES = PHOTO | {"Hugging Face", "Roboflow", "Blue Iris", "DOODS", "CVAT"}
    CLASSES = PHOTO | {"Hugging Face", "Roboflow", "CVAT", "PhotoPrism: labels"}
    VECTOR = PHOTO | {"PhotoPrism: faces", "OpenAI", "llama.cpp"}
    WANTED = {"ipcam-general": BOXES, "turned": BOXES, "pose": BOXES, "masks": BOXES, "det": BOXES, "rec": PHOTO,
              "scene": CLASSES | {"CodeProject.AI: scene"}, "unsafe": CLASSES | {"PhotoPrism: nsfw"}, "binary": CLASSES | {"PhotoPrism: nsfw"},
              "areas": PHOTO | {"Hugging Face", "CVAT"}, "vector": VECTOR, "clip": VECTOR | {"Immich"},
              "clip.text": {"V2): inputs", "OpenAI", "llama.cpp", "Immich"}, "plates": {"CodeProject.AI: number plates", "Plate Recognizer"},
              "ocr": {"CodeProject.AI: text", "Immich: ocr"}, "faces": {"CodeProject.AI: faces", "Immich: facial"}, "sam": {"V2): inputs", "CVAT: interactor"},
              "sam.decoder": {"V2): inputs"}, "other": {"lensd's own"}}

    def setUp(self):
        why = browser.missing()
        if why or not shutil.which("curl"):
            raise unittest.SkipTest(why or "curl is not installed")
        super().setUp()
        shutil.copytree(os.path.join(harness.ROOT, "tests", "data", "sam", "sam"), self.path("models/sam"))
        shutil.copytree(os.path.join(harness.ROOT, "tests", "data", "text_models", "clip"), self.path("models/clip"))
        self.write("other/pipeline.json", json.dumps({"stages": [{"model": "plate-detector"}, {"model": "binary"}]}))
        self.server = self.serve("--models", self.path("models"), "--default-model", "ipcam-general", "--device", "cpu", "--precision", "fp32")
        with open(self.path("photo.jpg"), "wb") as file:
            file.write(harness.png(64, 64))
        opened = browser.Browser()
        self.addCleanup(opened.close)
        self.driver = opened.driver

    def shown(self, name):
        from selenium.webdriver.support.ui import Select
        end = time.monotonic() + WAIT
        Select(self.driver.find_element("css selector", "#doors-model")).select_by_value(name)
        while time.monotonic() < end:
            found = self.driver.execute_script(
                "const host = document.querySelector('#doors');"
                "const names = [...host.querySelectorAll('h3')].map((h) => h.textContent), lines = [...host.querySelectorAll('pre')].map((p) => p.textContent);"
                "return JSON.parse(host.dataset.shown || '[{}]')[0].name === arguments[0] && host.dataset.done ? [names, lines] : null", name)
            if found:
                return list(zip(*found))
            time.sleep(.05)
        raise AssertionError(f"no lines for {name}")

    def test_lines(self):
        self.driver.get(f"http://127.0.0.1:{self.server.port}/#api")
        end = time.monotonic() + WAIT
        while len(self.driver.find_elements("css selector", "#doors-model option")) < len(self.WANTED) and time.monotonic() < end:
            time.sleep(.05)
        for model, wanted in self.WANTED.items():
            with self.subTest(model=model):
                lines = self.shown(model)
                names = [name for name, _ in lines]
                self.assertEqual((len(names), [[word in name for name in names].count(True) for word in wanted]),
                                 (len(wanted), [1] * len(wanted)), names)
                for name, line in lines:
                    run = subprocess.run(["bash", "-o", "pipefail", "-c", line.replace("curl ", "curl -sS -f ", 1)], cwd=self.folder,
                                         capture_output=True, text=True, timeout=WAIT)
                    self.assertEqual((run.returncode, run.stderr), (0, ""), line)
                    answer = json.loads(run.stdout)
                    self.assertTrue(answer != [] and "error" not in answer, (line, answer))


class Guarded(Console):
    @classmethod
    def setUpClass(cls):
        made = harness.run_lensd("key", "tester")
        cls.key = re.search(r"\S{40,}", made.stderr).group()
        cls.keys_file = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"lensd-console-keys-{os.getpid()}")
        with open(cls.keys_file, "w", encoding="utf-8") as file:
            file.write(made.stdout)
        cls.arguments = ("--api-keys", cls.keys_file)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        os.unlink(cls.keys_file)

    def test_asks_for_the_key_and_goes_on(self):
        self.wait(lambda: self.find("#key-form").is_displayed(), "the field for the key")
        self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
        text = self.wait(lambda: self.texts("#answer .error"), "an error")[0]
        self.assertIn("needs an API key", text)
        self.find("#key").send_keys(self.key + "\n")
        self.assertEqual(self.first_label(), "7")
        self.assertFalse(self.find("#key-form").is_displayed())
        self.assertIn('-H "Authorization: Bearer $LENSD_KEY"', self.find("#curl-text").text)
        self.assertNotIn(self.key, self.find("#curl-text").text)
        self.view("api")
        lines = self.wait(lambda: [line for line in self.texts("#doors pre") if "predictions" in line and "Bearer $LENSD_KEY" in line], "a line with the key")
        with open(os.path.join(self.server.folder, "photo.jpg"), "wb") as file:
            file.write(read(SEVEN))
        ended = subprocess.run(["bash", "-c", lines[0].replace("curl ", "curl -s ", 1)], cwd=self.server.folder, env={**os.environ, "LENSD_KEY": self.key}, stdout=subprocess.PIPE,
                               text=True, timeout=WAIT)
        self.assertIn('"7"', ended.stdout, lines)
        self.view("models")
        self.wait(lambda: self.texts("#devices h3"), "devices")


class Gone(Console):
    def test_a_server_that_ends(self):
        self.server.signal()
        self.server.wait()
        self.wait(lambda: self.find("#state").text == "not reachable", "the state")
        self.arrive("drop", ("seven.png", "image/png", read(SEVEN)))
        text = self.wait(lambda: self.texts("#answer .error"), "an error")[0]
        self.assertIn("The server does not answer", text)


if __name__ == "__main__":
    unittest.main()

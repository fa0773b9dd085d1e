"""The pictures of concepts and architecture: ``python docs/images/diagrams.py`` writes the SVG files beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

BLUE, GREEN, AMBER, GREY = "#dcebf7", "#e0f2e7", "#fdeed8", "#eef1f4"
LINE_HEIGHT = 17


@dataclass
class Picture:
    """Boxes and arrows on a canvas as wide as a phone."""

    title: str
    height: int
    width: int = 520
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, text: str, fill: str = BLUE) -> None:
        """A box with centred lines of text; the first is bold where there are several."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="#5b6672"/>'
        )
        lines = text.split("\n")
        top = y + height / 2 - LINE_HEIGHT * (len(lines) - 1) / 2 + 5
        for number, line in enumerate(lines):
            weight = ' font-weight="bold"' if number == 0 and len(lines) > 1 else ""
            self.parts.append(
                f'<text x="{x + width / 2:g}" y="{top + LINE_HEIGHT * number:g}" text-anchor="middle"{weight}>'
                f"{escape(line)}</text>"
            )

    def arrow(self, *points: tuple[int, int], label: str = "", at: tuple[int, int] | None = None) -> None:
        """A line through points with a head at its end; the label is centred on ``at``, or over the middle."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="#1a2129" marker-end="url(#head)"/>')
        if label:
            (x0, y0), (x1, y1) = points[0], points[-1]
            x, y = at or ((x0 + x1) // 2, (y0 + y1) // 2 - 6)
            self.text(x, y, label)

    def text(self, x: int, y: int, text: str) -> None:
        """A small text, centred."""
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="middle" font-size="12" fill="#44505c">{escape(text)}</text>'
        )

    def write(self, path: Path) -> None:
        """Write the file."""
        body = "\n".join(self.parts)
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="sans-serif" font-size="14" fill="#1a2129">\n<title>{escape(self.title)}</title>\n'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#1a2129"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>\n{body}\n</svg>\n'
        )


def node() -> Picture:
    """Slices on a node."""
    picture = Picture("Slices on a node, and the three knobs of each", 300)
    picture.box(190, 10, 140, 40, "agent and guard", AMBER)
    for number, y in enumerate((80, 150, 220), 1):
        picture.box(170, y, 180, 52, f"UPF of slice {number}\nCPU limit, nice level")
        picture.arrow((70, y + 26), (170, y + 26), label="N3")
        picture.arrow((350, y + 26), (450, y + 26), label="egress rate")
    picture.box(10, 80, 60, 192, "gNB", GREY)
    picture.box(450, 80, 60, 192, "N6", GREY)
    picture.arrow((240, 50), (240, 80))
    picture.arrow((280, 80), (280, 50))
    picture.text(185, 70, "knobs")
    picture.text(390, 70, "rates, delays, CPU time, waits")
    return picture


def tick() -> Picture:
    """A control period."""
    picture = Picture("A tick of the control loop", 330)
    picture.box(10, 20, 110, 190, "kernel\n\npackets at\nN3 and N6,\nCPU time,\nrun queue", GREY)
    steps = (("observe", "Telemetry"), ("decide", "wanted Knobs"), ("guard", "allowed Knobs"), ("apply", "Receipt"))
    for number, (name, result) in enumerate(steps):
        x, y = (180, 20) if number == 0 else (350, 20) if number == 1 else (350, 150) if number == 2 else (180, 150)
        picture.box(x, y, 140, 60, f"{name}\n{result}", AMBER if name == "guard" else BLUE)
    picture.arrow((120, 50), (180, 50))
    picture.arrow((320, 50), (350, 50))
    picture.arrow((420, 80), (420, 150), label="agent", at=(450, 120))
    picture.arrow((350, 180), (320, 180))
    picture.arrow((180, 180), (120, 180))
    picture.text(150, 172, "write")
    picture.box(180, 260, 140, 50, "ring of ticks", GREEN)
    picture.arrow((250, 210), (250, 260))
    picture.box(350, 260, 160, 50, "metrics, records,\ntop, explain", GREY)
    picture.arrow((320, 285), (350, 285))
    return picture


def modes() -> Picture:
    """From shadow to live."""
    picture = Picture("From shadow to live", 260)
    for x, text, fill in (
        (10, "shadow\ndecides only", BLUE),
        (190, "canary\nacts on some", BLUE),
        (370, "live\nacts on all", GREEN),
    ):
        picture.box(x, 40, 140, 60, text, fill)
    picture.arrow((150, 70), (190, 70))
    picture.arrow((330, 70), (370, 70))
    picture.text(170, 28, "promote: certificate")
    picture.text(350, 28, "control mode live")
    picture.box(190, 150, 320, 40, "safe setting of the slice", AMBER)
    picture.arrow((260, 100), (260, 150), label="guard", at=(285, 130))
    picture.arrow((440, 100), (440, 150), label="guard", at=(465, 130))
    picture.box(190, 210, 320, 40, "original knobs", GREY)
    picture.arrow((350, 190), (350, 210))
    picture.text(105, 225, "supervisor, after")
    picture.text(105, 241, "a crash or a hang")
    picture.arrow((160, 232), (190, 232))
    return picture


def axes() -> Picture:
    """The three axes of a comparison."""
    picture = Picture("Three axes, on the same random events", 250)
    picture.box(190, 10, 140, 40, "same seeds", GREY)
    for y, text, better in (
        (75, "broken promises\nweighted seconds", "less is better"),
        (135, "best effort\ntraffic beyond promises", "more is better"),
        (195, "wasted CPU\nheld and not used", "less is better"),
    ):
        picture.box(170, y, 180, 46, text)
        picture.arrow((90, y + 23), (170, y + 23))
        picture.arrow((430, y + 23), (350, y + 23))
        picture.text(262, y + 58, better)
    picture.box(10, 75, 80, 166, "an agent", GREEN)
    picture.box(430, 75, 80, 166, "its rival", AMBER)
    picture.arrow((190, 30), (50, 30), (50, 75))
    picture.arrow((330, 30), (470, 30), (470, 75))
    return picture


def processes() -> Picture:
    """The processes of a controller."""
    picture = Picture("The processes of a controller", 310)
    picture.box(10, 20, 130, 40, "operator", GREY)
    picture.box(10, 90, 130, 40, "Prometheus", GREY)
    picture.box(300, 30, 210, 90, "publisher\nmetrics, records, orders\nno privileges", GREEN)
    picture.arrow((140, 40), (300, 55), label="slicepilot control", at=(225, 36))
    picture.arrow((140, 110), (300, 95), label="HTTP", at=(225, 120))
    picture.box(10, 200, 200, 70, "controller\nloop, orders, journal")
    picture.arrow((150, 200), (300, 115), label="ring", at=(205, 152))
    picture.arrow((330, 120), (200, 200), label="orders", at=(300, 165))
    picture.box(300, 200, 210, 90, "supervisor\nrestores the knobs when\nthe controller ends or hangs", AMBER)
    picture.arrow((210, 225), (300, 225), label="heartbeat")
    picture.arrow((210, 255), (300, 255), label="journal")
    return picture


if __name__ == "__main__":
    for make in (node, tick, modes, axes, processes):
        make().write(Path(__file__).with_name(f"{make.__name__}.svg"))

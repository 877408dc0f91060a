"""Graphs as drawings: nothing stands on anything else, arrows go down, and a large one is cut."""

from __future__ import annotations

from itertools import combinations

from temporalex_django.present.picture import HEIGHT, MAX_STEPS, WIDTH, Arrow, draw_picture


def arrows(*pairs: tuple[int, int]) -> list[Arrow]:
    return [Arrow(source=source, target=target, label="done") for source, target in pairs]


def test_steps_stand_in_layers_and_none_covers_another() -> None:
    links = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (3, 4), (0, 4)]
    drawn = draw_picture(list("abcde"), arrows(*links), {0: "completed", 1: "active"})
    tops = [box.y for box in drawn.boxes]
    assert all(tops[source] < tops[target] for source, target in links)
    assert tops[1] == tops[2]
    for one, other in combinations(drawn.boxes, 2):
        assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT
    for box in drawn.boxes:
        assert 0 <= box.x <= drawn.width - WIDTH
        assert 0 <= box.y <= drawn.height - HEIGHT
    assert [line.is_taken for line in drawn.lines][:2] == [True, False]
    assert drawn.left_out == 0


def test_arrows_of_a_ladder_do_not_cross() -> None:
    """Two chains side by side stay so, whichever is named first."""
    drawn = draw_picture(list("abcdef"), arrows((0, 3), (1, 2), (2, 5), (3, 4)), {})
    at = {box.number: box.x for box in drawn.boxes}
    assert (at[0] < at[1]) == (at[3] < at[2]) == (at[4] < at[5])


def test_labels_at_the_sides_have_room() -> None:
    """A label of 17 letters is wider than the arrow that passes a step at the side."""
    label = "rejected, overdue"
    links = [(0, 1, "large"), (0, 2, "small"), (1, 2, "approved"), (1, 3, label), (2, 3, "paid")]
    drawn = draw_picture(list("abcd"), [Arrow(source=s, target=t, label=text) for s, t, text in links], {})
    for line in drawn.lines:
        half = len(line.label) * 6.5 / 2  # a wide font
        assert half <= line.x <= drawn.width - half
    (alone,) = draw_picture(list("ab"), [Arrow(source=0, target=1, label="x" * 60)], {}).lines
    assert alone.x > 60 * 6.5 / 2


def test_a_large_one_is_cut_and_an_empty_one_drawn() -> None:
    many = MAX_STEPS + 20
    drawn = draw_picture([str(n) for n in range(many)], arrows(*((n, n + 1) for n in range(many - 1))), {})
    assert (len(drawn.boxes), len(drawn.lines), drawn.left_out) == (MAX_STEPS, MAX_STEPS - 1, 20)
    assert draw_picture([], [], {}).boxes == []
    (box,) = draw_picture(["x" * 99], [], {}).boxes
    assert box.short_title.endswith("…")

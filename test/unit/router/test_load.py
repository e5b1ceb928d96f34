"""The load view: our own traffic at once, others' from reports, nothing twice, stale reports fade."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.load import LoadModel, LoadReport, LoadView

TOKENS = LoadModel(unknown_work=100.0, stale_after_s=5.0)


def view(model: LoadModel = TOKENS, board: CounterBoard | None = None) -> LoadView:
    return LoadView(model, board or CounterBoard(), slot=0)


def test_own_traffic_counts_at_once_and_goes_back_to_zero() -> None:
    load = view()
    number = load.start(500, 0)
    assert load.view(0.0) == (1, 500)
    load.finish(500, 0, number)
    assert load.view(0.0) == (0, 0)


def test_a_report_of_our_own_requests_adds_nothing() -> None:
    load = view()
    load.start(500, 0)
    load.start(300, 0)
    load.observe(LoadReport(requests=2, tokens=800), now=1.0)
    assert load.view(1.0) == (2, 800)


def test_others_requests_add_and_ours_sent_later_add_once() -> None:
    load = view()
    load.start(500, 0)
    load.observe(LoadReport(requests=3, tokens=1500), now=1.0)
    load.start(200, 0)
    assert load.view(1.0) == (4, 1700)


def test_own_requests_that_end_after_the_report_leave_the_view() -> None:
    load = view()
    number = load.start(500, 0)
    load.observe(LoadReport(requests=3, tokens=1500), now=1.0)
    load.finish(500, 0, number)
    assert load.view(1.0) == (2, 1000)


def test_a_request_sent_while_the_worker_was_being_asked_is_not_taken_for_anothers() -> None:
    load = view()
    before = load.own
    load.start(500, 0)
    load.observe(LoadReport(requests=1, tokens=500), 1.0, before)
    assert load.view(1.0)[0] == 1


def test_a_request_that_ended_while_the_worker_was_being_asked_is_not_taken_for_anothers() -> None:
    load = view()
    number = load.start(500, 0)
    before = load.own
    load.finish(500, 0, number)
    load.observe(LoadReport(requests=1, tokens=500), 1.0, before)
    assert load.view(1.0) == (0, 0)


def test_the_report_corrects_our_estimate_of_tokens() -> None:
    load = view()
    load.start(1000, 0)
    load.observe(LoadReport(requests=1, tokens=100), now=1.0)
    assert load.view(1.0) == (1, 100)


def test_requests_that_a_prefill_worker_does_not_report_keep_our_estimate() -> None:
    load = view()
    for _ in range(4):
        load.start(1000, 0)
    # One is in its queue, with 600 uncached tokens; three wait for embeddings and appear nowhere.
    load.observe(LoadReport(requests=1, tokens=600), now=1.0)
    assert load.view(1.0) == (4, 3600)


def test_only_the_existence_of_others_requests_is_known() -> None:
    load = view()
    load.observe(LoadReport(requests=7), now=1.0)
    assert load.view(1.0) == (7, 700)


def test_stale_reports_fade_to_our_own_count() -> None:
    load = view()
    load.start(500, 0)
    load.observe(LoadReport(requests=5, tokens=2500), now=0.0)
    assert load.view(5.0) == (5, 2500)
    assert load.view(7.5) == (3, 1500)
    assert load.view(10.0) == (1, 500)
    assert load.view(1e9) == (1, 500)


def test_late_reports_are_dropped_and_a_restarted_counter_is_taken() -> None:
    load = view()
    assert load.observe(LoadReport(requests=5, seq=10), now=0.0)
    assert not load.observe(LoadReport(requests=9, seq=9), now=0.1)
    assert not load.observe(LoadReport(requests=9, seq=10), now=0.1)
    assert load.view(0.1)[0] == 5
    assert load.observe(LoadReport(requests=2, seq=0), now=6.0)
    assert load.view(6.0)[0] == 2


def test_a_worker_that_says_that_it_has_started_anew_is_believed_at_once() -> None:
    load = view()
    assert load.observe(LoadReport(requests=5, seq=10, epoch="a"), now=0.0)
    assert not load.observe(LoadReport(requests=3, seq=2, epoch="a"), now=0.1)
    assert load.observe(LoadReport(requests=3, seq=2, epoch="b"), now=0.1)
    assert load.view(0.1)[0] == 3


def test_dispatch_numbers_make_the_report_exact() -> None:
    load = view(LoadModel(by_patches=True, track_dispatch=True))
    first = load.start(0, 100)
    load.start(0, 70)
    load.start(0, 50)
    # The worker had received only the first when it reported 30 patches left of ours and 40 of others.
    load.observe(LoadReport(requests=2, patches=70, seen=first), now=1.0)
    assert load.view(1.0) == (4, 190)


def test_processes_see_each_others_work_and_a_dead_ones_is_cleared() -> None:
    buffer = bytearray(CounterBoard.size(2))
    boards = [CounterBoard(buffer, processes=2, mine=i) for i in range(2)]
    mine, other = (LoadView(TOKENS, board, slot=3) for board in boards)
    mine.start(100, 0)
    other.start(40, 0)
    assert mine.view(0.0) == other.view(0.0) == (2, 140)
    boards[0].clear_row(1)
    assert mine.view(0.0) == (1, 100)


@given(
    st.lists(st.tuples(st.sampled_from(["start", "finish", "report"]), st.integers(0, 1000)), max_size=60),
    st.integers(0, 20),
)
def test_with_exact_reports_the_view_is_own_plus_others(events: list[tuple[str, int]], others: int) -> None:
    """Whatever the order of sends, ends and (instant, exact) reports, requests = ours + others' at the last report."""
    load = view()
    flying: list[tuple[int, int]] = []
    known_others = 0
    for kind, value in events:
        if kind == "start":
            flying.append((value, load.start(value, 0)))
        elif kind == "finish" and flying:
            tokens, number = flying.pop(value % len(flying))
            load.finish(tokens, 0, number)
        elif kind == "report":
            own = load.own
            known_others = others
            load.observe(LoadReport(own.requests + others, own.tokens + 10 * others), now=0.0)
        assert load.view(0.0) == (len(flying) + known_others, sum(t for t, _ in flying) + 10 * known_others)

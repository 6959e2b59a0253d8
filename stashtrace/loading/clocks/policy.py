"""Thresholds of the alignment of clocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Which readings of clocks are used, and how far they are trusted, each with its reason."""

    # Stamps of a file.

    #: Largest rounding step of the time stamps in a file: many formats hold microseconds.
    stamp_error_ns: int = 1_000

    # Readings of a device's clock.

    #: A reading is compared with the best one in a window of this length, because a busy device answers late for a
    #: while.
    device_window_ns: int = 16_000_000_000
    #: A reading this much wider than the best of its window, or of a host's than its usual best, only adds noise.
    wide_times: int = 4
    #: A reading this much wider than the usual one of the run is left out where its neighbours are as near as that.
    very_wide_times: int = 8
    near_ns: int = 64_000_000_000
    #: Of two readings closer together than this, only one is used.
    close_ns: int = 250_000_000
    #: Two readings whose rate is further from 1 than this contradict each other; a host's rate that differs from the
    #: usual one by more is a jump of the clock, not drift.
    most_drift_ppb: int = 2_000_000
    #: The same where the usual rate was measured within a few ms, at the start of a process.
    most_header_drift_ppb: int = 50_000_000
    #: Rounding step of an event's time; the driver counts in about half a microsecond.
    event_step_ns: int = 500
    #: A common factor of the readings above this is a coincidence.
    most_step_ns: int = 1 << 14
    #: A reading that took longer than this (three days) is ignored.
    most_width_ns: int = 1 << 48

    # Readings of a host's clock.

    #: The best reading of each window of this length is kept, or of this many windows of a short run: in shorter
    #: pieces, the noise of readings would look like a change of rate.
    window_ns: int = 500_000_000
    least_windows_count: int = 16
    #: A piece shorter than this is not used to extrapolate.
    baseline_ns: int = 10_000_000_000
    #: Error claimed for a reading without a bracket: the start pair in a file's header, read once, often right after
    #: a fork, when the first touch of each page faults.
    unbracketed_ns: int = 100_000
    #: A rate is taken from readings at least this far apart, else from the files' headers.
    rate_span_ns: int = 20_000_000
    #: No counter ticks more slowly; the limit keeps the numbers of a damaged file within 64 bits.
    steepest_ns_per_tick: float = 1e6
    #: Floor of the error between two hosts whose only common clock is the wall clock: NTP over a busy network.
    realtime_error_ns: int = 10_000_000
    #: A reading that took longer (a day at 3 GHz) is ignored, as is a tick rate outside these bounds.
    most_bracket_ticks: int = 1 << 48
    least_hz: float = 1e3
    most_hz: float = 1e12

    # The clocks of two hosts.

    #: How much the rate of a clock in a machine room changes during a run: quartz holds 0.1 ppm (Veitch et al.
    #: 2009).
    wander_ratio: float = 1e-7
    #: The tightest limits are kept for each of this many pieces of time, or of more, up to a maximum, so that a piece
    #: of a long run is at most this long.
    pieces_count: int = 64
    piece_ns: int = 30_000_000_000
    most_pieces_count: int = 1024
    #: A limit this far, plus this many half-widths of the rough band, on the wrong side is rejected at once.
    gross_half_widths: float = 3.0
    gross_ns: float = 50_000.0
    #: Contradictions are resolved one at a time; after this many of them, that distance is halved.
    patience_rounds: int = 16
    #: Rounds in all.
    most_rounds: int = 512
    #: Windows in which rejected limits are counted: if more than half of a window is wrong, the clock was set.
    windows_count: int = 64
    #: No two clocks differ by more: each may be slewed by 500 ppm.
    most_drift_between_ratio: float = 1e-3
    #: Each host must have entered last in at least this many operations.
    fewest_last_count: int = 8
    #: An operation is small if it took at most this many times as long as a quick one.
    small_times: float = 1.5
    #: Part of a quick operation's duration by which one host may end later, whichever host entered last: threads of
    #: the host wake up late, kernels on devices hardly differ.
    host_asymmetry_ratio: float = 0.5
    device_asymmetry_ratio: float = 0.125
    #: On hosts, the ends are only used where the limits are this many times as wide.
    host_ends_used_times: float = 3.0


POLICY = Policy()

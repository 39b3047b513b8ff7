"""A pytest plugin: a test with the fixture `tfdbg_recording` fails if a NaN or an infinity occurs during the test.

    def test_training(tfdbg_recording):
        train()

    @pytest.mark.tfdbg(mode="FULL_NUMERICS", rules=["overflow_near"], allow="Log")
    def test_loss():
        ...

A test that has only the marker is also recorded. The plugin imports TensorFlow only when the first test is recorded.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tfdbg_arrow.query import Alert, Logdir, NonFinite
    from tfdbg_arrow.query.present.blocks import Block

_MARKER = "tfdbg"
_DIRECTORY = "tfdbg_arrow"
_MARKER_DOC = (
    "tfdbg(mode, *, kinds, allow, allow_expected, rules, **settings): records the test and fails it if a NaN or an "
    "infinity occurs. mode: how much of each tensor is recorded (FULL_HEALTH). kinds: the values that are bad (nan, "
    "inf). allow: a regular expression; ops whose name or type it matches may create bad values. allow_expected: "
    "whether bad values that did no harm are allowed (True). rules: alert rules that also fail the test, as a list of "
    "names or a mapping of name to parameters. Other settings are those of tfdbg_arrow.enable()."
)
_KINDS = ("nan", "inf")
"""The kinds of bad values."""
_MAX_ALERTS = 5
"""Maximum number of alerts that the message of a failed test describes. The message counts the others."""


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """The settings of a recorded test.

    Attributes:
        mode: The tensor_debug_mode.
        kinds: The values that count as bad: `nan`, `inf` or both. If empty, only the rules can fail the test.
        allow: A regular expression (`re.match`) for the names or types of ops that may create bad values. None means
            that no op may create bad values.
        allow_expected: Whether bad values that did no harm are allowed.
        rules: The alert rules that can fail the test, each with the parameters that override its defaults.
        settings: Other arguments of `tfdbg_arrow.enable`.
    """

    mode: str = "FULL_HEALTH"
    kinds: tuple[str, ...] = _KINDS
    allow: str | None = None
    allow_expected: bool = True
    rules: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TestRecording:
    """The value of the fixture: a recording that is active until the body of the test ends.

    Attributes:
        logdir: The logdir, below the test's tmp_path. The logdir is kept as long as pytest keeps tmp_path.
        run_id: The run; None if TFDBG_ARROW=0 turned recording off.
        options: The settings of the test.
    """

    __test__ = False

    logdir: Path
    run_id: str | None
    options: RecordingOptions

    def end(self) -> None:
        """Ends the recording, unless the test has already ended it."""
        from tfdbg_arrow.writer import active_recording

        if self.run_id is not None and active_recording.run_id() == self.run_id:
            active_recording.end()


_RECORDING = pytest.StashKey[TestRecording]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds command-line options. The options apply to tests whose marker does not set these options."""
    group = parser.getgroup("tfdbg_arrow")
    group.addoption("--tfdbg-mode", metavar="MODE", help="tensor_debug_mode of recorded tests (ini: tfdbg_mode)")
    group.addoption(
        "--tfdbg-rule",
        metavar="NAME",
        action="append",
        help="an alert rule that also fails recorded tests; can be given several times (ini: tfdbg_rules)",
    )
    parser.addini("tfdbg_mode", "tensor_debug_mode of tests recorded by tfdbg_arrow", default="FULL_HEALTH")
    parser.addini("tfdbg_rules", "alert rules that fail tests recorded by tfdbg_arrow", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", _MARKER_DOC)


@pytest.fixture(autouse=True)
def _tfdbg_marked(request: pytest.FixtureRequest) -> None:
    """Records the test if it has the marker."""
    if request.node.get_closest_marker(_MARKER) is not None:
        request.getfixturevalue("tfdbg_recording")


@pytest.fixture
def tfdbg_recording(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[TestRecording]:
    """Records a test. After the body of the test, the test fails if a NaN or an infinity occurred."""
    import tfdbg_arrow

    options = _options(request.node)
    logdir = tmp_path / _DIRECTORY
    run_id = tfdbg_arrow.enable(logdir, options.mode, **options.settings)
    recording = TestRecording(logdir=logdir, run_id=run_id, options=options)
    request.node.stash[_RECORDING] = recording
    try:
        yield recording
    finally:
        recording.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Lets a recorded test fail after its body. If the body failed, only adds a section to the test's report."""
    try:
        result = yield
    except (Exception, pytest.fail.Exception):
        recording = item.stash.get(_RECORDING, None)
        if recording is not None:
            text = _what_came_up_anyway(recording)
            if text is not None:
                item.add_report_section("call", "tfdbg_arrow", text)
        raise
    recording = item.stash.get(_RECORDING, None)
    if recording is not None:
        text = _examine(recording)
        if text is not None:
            pytest.fail(text, pytrace=False)
    return result


def _options(node: Any) -> RecordingOptions:
    """Returns the options of a test.

    The test's marker overrides the command line, and the command line overrides the configuration.

    Raises:
        pytest.UsageError: The marker has an invalid argument.
    """
    config: pytest.Config = node.config
    marker = node.get_closest_marker(_MARKER)
    given: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    if marker is not None and marker.args:
        if len(marker.args) > 1 or "mode" in given:
            raise pytest.UsageError(f"the marker tfdbg of {node.nodeid} takes one positional argument, the mode.")
        given["mode"] = marker.args[0]
    rules = given.pop("rules", config.getoption("--tfdbg-rule") or config.getini("tfdbg_rules"))
    allow = given.pop("allow", None)
    try:
        re.compile(allow or "")
    except (re.error, TypeError) as error:
        raise pytest.UsageError(f"the marker tfdbg of {node.nodeid} has allow={allow!r}: {error}.") from error
    kinds = given.pop("kinds", _KINDS)
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise pytest.UsageError(
            f"the marker tfdbg of {node.nodeid} has the unknown kind {unknown[0]!r}, expected 'nan', 'inf' or both."
        )
    options = RecordingOptions(
        mode=given.pop("mode", config.getoption("--tfdbg-mode") or config.getini("tfdbg_mode")),
        kinds=kinds,
        allow=allow,
        allow_expected=given.pop("allow_expected", True),
        rules=_as_rules(rules),
        settings=given,
    )
    _check_settings(node, given)
    return options


def _as_rules(rules: str | Sequence[str] | Mapping[str, Mapping[str, float]]) -> Mapping[str, Mapping[str, float]]:
    if isinstance(rules, Mapping):
        return rules
    return {name: {} for name in ([rules] if isinstance(rules, str) else rules)}


def _check_settings(node: Any, settings: Mapping[str, Any]) -> None:
    from tfdbg_arrow.stop import enable

    names = set(inspect.signature(enable).parameters) - {"logdir", "tensor_debug_mode"}
    unknown = sorted(set(settings) - names)
    if unknown:
        raise pytest.UsageError(
            f"the marker tfdbg of {node.nodeid} has the unknown argument {unknown[0]!r}; it takes mode, kinds, allow, "
            "allow_expected, rules and the settings of tfdbg_arrow.enable()."
        )


def _examine(recording: TestRecording) -> str | None:
    """Ends a recording. Returns the reason why the test fails, or None if the test does not fail."""
    from tfdbg_arrow.writer import active_recording

    recording.end()
    if recording.run_id is None:
        return None
    options = recording.options
    if not options.rules and not active_recording.may_have_bad_values(recording.run_id):
        return None  # do not spend time on the query layer, whose answer is known
    # The query layer is imported only here, because it takes long to import.
    from tfdbg_arrow.query import open_logdir, read_reasons
    from tfdbg_arrow.query.present.blocks import Facts, Line
    from tfdbg_arrow.query.present.findings import alert
    from tfdbg_arrow.query.present.tensors import nonfinite_in_brief
    from tfdbg_arrow.query.present.text import text_of

    with open_logdir(recording.logdir) as logdir:
        first = _first_origin(logdir, recording) if options.kinds else None
        reasons = None if first is None else read_reasons(logdir, first)
        alerts: tuple[Alert, ...] = ()
        if options.rules:
            parameters = {kind: values for kind, values in options.rules.items() if values}
            alerts = logdir.alerts(kinds=list(options.rules), parameters=parameters, run_id=recording.run_id).alerts
    where = ("logdir", str(recording.logdir))
    blocks: list[Block] = [] if first is None or reasons is None else [*nonfinite_in_brief(first, reasons, where)]
    for found_alert in alerts[:_MAX_ALERTS]:
        blocks += alert(found_alert)
    if len(alerts) > _MAX_ALERTS:
        blocks.append(Line(f"and {len(alerts) - _MAX_ALERTS:,} more alerts"))
    if first is None and blocks:
        blocks.append(Facts([where]))
    return text_of(blocks) if blocks else None


def _what_came_up_anyway(recording: TestRecording) -> str | None:
    """Returns the findings in a test whose body failed. If the findings cannot be read, returns the error as text."""
    try:
        return _examine(recording)
    except Exception as error:
        return f"the recording could not be examined ({error})"


def _first_origin(logdir: Logdir, recording: TestRecording) -> NonFinite | None:
    """Returns the first bad value that the options do not allow."""
    from tfdbg_arrow.query.nonfinite_search import first_nonfinite

    options = recording.options
    pattern = None if options.allow is None else re.compile(options.allow)

    def is_allowed(op_type: str | None, op_name: str | None) -> bool:
        return pattern is not None and any(pattern.match(text) for text in (op_type, op_name) if text is not None)

    first = first_nonfinite(logdir, kinds=options.kinds, run_id=recording.run_id, is_allowed=is_allowed)
    return None if first is not None and first.is_expected and options.allow_expected else first

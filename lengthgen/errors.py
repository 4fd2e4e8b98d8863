"""The lines that a user reads, and what ends a command with one instead of a traceback."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches

Say = Callable[[str], object]  # shows a line to the user
FOR_PROGRAMMERS = "; use sys.set_int_max_str_digits() to increase the limit"  # of Python
MOST = 2000  # characters of a message, which may quote a value of any length


def unsaid(line: str) -> None:
    """Discards a line: a `Say` for callers that show nothing."""


class UserError(Exception):
    """A mistake the user can fix: what is wrong, where (dotted key or path), and the remedy."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.replace(FOR_PROGRAMMERS, "").split())
        super().__init__(line if len(line) <= MOST else f"{line[: MOST // 2]} ... {line[-400:]}")


class Diverged(UserError):
    """A loss or gradient that is not finite: nothing of it is kept, and it would end so again."""


class Refused(UserError):
    """What all processes of a run refuse before they work on it together."""


class Stopped(BaseException):
    """A signal ended the work; nothing takes it for an error. exit_code is 128 + its number."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def out_of_memory(error: BaseException) -> str | None:
    """Returns one line on an error of Python or PyTorch that memory could not be allocated.

    It says what was asked for and what to lower; None for another error.
    """
    named = type(error).__name__ == "OutOfMemoryError"  # torch's, which need not be imported
    words = (
        "can't allocate memory",
        *("Cannot allocate memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED"),
        "Storage size calculation overflowed",
        "failed to map segment",
        *("MPS backend out of memory", "Invalid buffer size"),
    )
    if not (named or isinstance(error, MemoryError) or any(word in str(error) for word in words)):
        return None
    asked = " ".join(str(error).split())[:200] or type(error).__name__
    remedy = "lower runtime.micro_batch, the longest of eval.lengths or the model's size"
    return f"out of memory ({asked}); {remedy}"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    return (str(error).splitlines() or [""])[0]


def shortened(text: str) -> str:
    """Returns a text that a user gave, cut where it is too long for a message."""
    return text if len(text) <= 200 else f"{text[:200]}..."


OTHER_NAMES = {  # of keys, as other programs have them
    **dict.fromkeys(("learning_rate", "max_lr"), "train.lr"),
    **dict.fromkeys(("batch_size", "per_device_train_batch_size"), "train.batch_tokens"),
    **dict.fromkeys(("epochs", "num_train_epochs"), "train.tokens"),
    **dict.fromkeys(("max_steps", "iterations"), "train.steps"),
    **dict.fromkeys(("length", "block_size", "context_length", "seq_len"), "train.length"),
    **dict.fromkeys(("hidden_size", "n_embd", "dim"), "model.d_model"),
    **dict.fromkeys(("num_layers", "n_layer", "num_hidden_layers"), "model.n_layers"),
    **dict.fromkeys(("num_heads", "n_head", "num_attention_heads"), "model.n_heads"),
    **dict.fromkeys(("dtype", "bf16"), "train.precision"),
    "output_dir": "runtime.root",
}


def suggestion(
    word: str, known: Iterable[str], *, otherwise: str = "Tab completes the known ones"
) -> str:
    """Returns "did you mean X?" for the nearest known word, else the list of known words.

    `otherwise` stands for a list that is too long.
    """
    names = sorted(known)
    if (meant := OTHER_NAMES.get(word.rsplit(".", 1)[-1])) in names:
        return f"did you mean {meant}?"
    last = [name.rsplit(".", 1)[-1] for name in names]
    near = get_close_matches(word, names, n=1, cutoff=0.6)
    if not near:  # a key under the wrong section: compare the last component alone
        match = get_close_matches(word.rsplit(".", 1)[-1], last, n=1, cutoff=0.75)
        near = [names[last.index(match[0])]] if match else []
    if near:
        return f"did you mean {near[0]}?"
    if not names:
        return "none is known here"
    return f"known: {', '.join(names)}" if len(names) <= 16 else otherwise

"""SHA3-256 of several messages at the same time, with the vector instructions of the processor.

The hash of one message uses one lane of a vector register. With several messages, each lane holds one of
them, which is several times as fast as OpenSSL. LLVM compiles the code for the processor of this machine.
It is used only after it has computed the same hashes as OpenSSL here, in less time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from odf_engine.base.arrow import pa

LANES: Final = 4
_RATE: Final = 136
"""Bytes of a block."""
_WORDS: Final = 25
_ROUNDS: Final = 24
_SUFFIX: Final = 6
"""The bits after a message, which tell SHA-3 from other uses of the permutation."""
_ROTATIONS: Final = (
    (0, 36, 3, 41, 18), (1, 44, 10, 45, 2), (62, 6, 43, 15, 61), (28, 55, 25, 21, 56), (27, 20, 39, 8, 14),
)  # fmt: skip
_MIN_GAIN: Final = 1.3
_MIN_BYTES: Final = 32 << 20
_TEST_BYTES: Final = 1 << 18

_Absorb = Callable[[Any, Any, int], None]


class Sha3Stream:
    """A message that is hashed in parts.

    Attributes:
        state: the state after the blocks so far.
        rest: the bytes that are not in it.

    Args:
        kernel: the compiled code.
        start: the first bytes.
    """

    def __init__(self, kernel: Kernel, start: bytes = b"") -> None:
        self._kernel = kernel
        self.state = (ctypes.c_uint64 * _WORDS)()
        self.rest = bytearray(start)

    def digest(self) -> bytes:
        """Return the hash. The message must not be continued."""
        missing = _RATE - len(self.rest) % _RATE
        padding = bytearray(missing)
        padding[0] = _SUFFIX
        padding[-1] |= 0x80
        self._kernel.update([self], [[bytes(padding)]])
        return bytes(self.state)[:32]


class _Lane:
    """A stream and the buffers that continue it.

    Attributes:
        stream: the stream.
        address: the address of the next block.
        blocks: the number of complete blocks there, at least 1.
    """

    def __init__(self, stream: Sha3Stream, buffers: Iterable[Any]) -> None:
        self.stream = stream
        self.address = self.blocks = 0
        self._buffers: Iterator[Any] = iter(buffers)
        self._held: list[pa.Buffer] = []

    def fill(self) -> bool:
        """Find the next blocks; return whether there are any. Other bytes become the rest of the stream."""
        while not self.blocks:
            if self._held:
                self._use(self._held.pop())
                continue
            data = next(self._buffers, None)
            if data is None:
                return False
            buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
            rest = self.stream.rest
            if rest and len(rest) + buffer.size >= _RATE:
                # Complete the blocks that have begun, then use the buffer without a copy.
                taken = -len(rest) % _RATE
                self._held = [buffer.slice(taken)]
                rest += memoryview(buffer)[:taken]
                buffer = pa.py_buffer(bytes(rest))
                rest.clear()
            self._use(buffer)
        return True

    def _use(self, buffer: pa.Buffer) -> None:
        self.blocks, left = divmod(buffer.size, _RATE)
        self.address, self._current = buffer.address, buffer
        if left:
            self.stream.rest += memoryview(buffer)[buffer.size - left :]

    def advance(self, blocks: int) -> bool:
        """Skip blocks that were absorbed; return whether more follow."""
        self.blocks -= blocks
        self.address += blocks * _RATE
        return bool(self.blocks) or self.fill()


class Kernel:
    """The compiled code. Thread-safe; it runs outside of the interpreter lock.

    Attributes:
        group: hashes the messages of several threads.

    Args:
        single: absorbs blocks of one message.
        several: absorbs blocks of :data:`LANES` messages.
        owner: keeps the code in memory.
    """

    def __init__(self, single: _Absorb, several: _Absorb, owner: object) -> None:
        self._single, self._several, self._owner = single, several, owner
        self.group = LaneGroup(self)

    def update(self, streams: Sequence[Sha3Stream], buffers: Sequence[Iterable[Any]]) -> None:
        """Continue messages.

        Args:
            streams: the messages, all different.
            buffers: the buffers of each message, in the same order.
        """
        pairs = zip(streams, buffers, strict=True)
        lanes = [lane for lane in (_Lane(*pair) for pair in pairs) if lane.fill()]
        while lanes:
            lanes.sort(key=lambda lane: -lane.blocks)
            chosen = lanes[:LANES] if len(lanes) > 1 else lanes
            count = min(lane.blocks for lane in chosen)
            self.absorb(chosen, count)
            for lane in chosen:
                if not lane.advance(count):
                    lanes.remove(lane)

    def absorb(self, lanes: Sequence[_Lane], count: int) -> None:
        """Absorb ``count`` blocks of each lane, of at most :data:`LANES` lanes."""
        states = [ctypes.addressof(lane.stream.state) for lane in lanes]
        blocks = [lane.address for lane in lanes]
        if len(lanes) == 1:
            self._single((ctypes.c_void_p * 1)(*states), (ctypes.c_void_p * 1)(*blocks), count)
            return
        unused = [(ctypes.c_uint64 * _WORDS)() for _ in range(LANES - len(lanes))]
        states += map(ctypes.addressof, unused)
        blocks += blocks[:1] * len(unused)
        self._several((ctypes.c_void_p * LANES)(*states), (ctypes.c_void_p * LANES)(*blocks), count)


class _Message:
    """A message that a thread waits for.

    Attributes:
        stream: the message.
        lane: its next blocks.
        is_done: whether it is complete, or has failed.
        error: an error of its buffers, or None.
    """

    def __init__(self, kernel: Kernel, buffers: Iterable[Any]) -> None:
        self.stream = Sha3Stream(kernel)
        self.lane = _Lane(self.stream, buffers)
        self.is_done = False
        self.error: BaseException | None = None

    def advance(self, blocks: int) -> None:
        """Skip blocks that were absorbed, and find the next ones."""
        try:
            self.is_done = not self.lane.advance(blocks)
        except BaseException as error:
            self.error, self.is_done = error, True


class LaneGroup:
    """Hashes the messages of several threads at the same time.

    One of the threads hashes the messages of all until its own is complete, and then another one does.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._messages: list[_Message] = []
        self._is_led = False
        self._changed = threading.Condition()

    def digest(self, buffers: Iterable[Any]) -> bytes:
        """Return the hash of a message, whose buffers may be read by another thread.

        Raises:
            BaseException: raised by the iterator.
        """
        message = _Message(self._kernel, buffers)
        with self._changed:
            self._messages.append(message)
            self._changed.wait_for(lambda: message.is_done or not self._is_led)
            self._is_led = self._is_led or not message.is_done
        if not message.is_done:
            self._lead(message)
        if message.error is not None:
            raise message.error
        return message.stream.digest()

    def _lead(self, own: _Message) -> None:
        try:
            while not own.is_done:
                with self._changed:
                    messages = self._messages[:LANES]
                self._step(messages)
                if any(message.is_done for message in messages):
                    with self._changed:
                        self._messages = [item for item in self._messages if not item.is_done]
                        self._changed.notify_all()
        finally:
            with self._changed:
                self._is_led = False
                self._changed.notify_all()

    def _step(self, messages: Sequence[_Message]) -> None:
        """Absorb the next blocks of messages."""
        for message in messages:
            if not message.lane.blocks:
                message.advance(0)
        active = [message for message in messages if not message.is_done]
        if active:
            count = min(message.lane.blocks for message in active)
            self._kernel.absorb([message.lane for message in active], count)
            for message in active:
                message.advance(count)


_lock = threading.Lock()
_builder: threading.Thread | None = None
_kernel: Kernel | None = None
_bytes = 0


def find_kernel(size: int = 0, *, wait: bool = False) -> Kernel | None:
    """Return the compiled code, or None if it is not compiled yet, or not faster than OpenSSL.

    It is compiled in the background, in half a second of a core, when a process has many bytes to hash.

    Args:
        size: number of bytes that the caller hashes.
        wait: compile it now, and wait.
    """
    global _builder, _bytes
    with _lock:
        _bytes += size
        if _builder is None and (wait or _bytes >= _MIN_BYTES):
            _builder = threading.Thread(target=_build, name="sha3", daemon=True)
            _builder.start()
    if wait and _builder is not None:
        _builder.join()
    return _kernel


def _build() -> None:
    global _kernel
    try:
        kernel = compile_kernel()
        if _is_correct(kernel) and _gain(kernel) >= _MIN_GAIN:
            _kernel = kernel
    except Exception:  # OpenSSL computes the same hashes
        _kernel = None


def compile_kernel() -> Kernel:
    """Compile the code for this processor.

    Raises:
        ImportError: LLVM is not installed.
        RuntimeError: LLVM cannot compile it.
    """
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("\n".join([*_function("single", 1), *_function("several", LANES)]))
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    single, several = (kind(engine.get_function_address(name)) for name in ("single", "several"))
    return Kernel(single, several, engine)


def _is_correct(kernel: Kernel) -> bool:
    """Return whether hashes of random messages of various lengths are those of OpenSSL."""
    for size in (0, 1, _RATE - 1, _RATE, _RATE + 1, 1000, 5000):
        messages = [os.urandom(size + 50 * number) for number in range(LANES + 1)]
        streams = [Sha3Stream(kernel) for _ in messages]
        kernel.update(streams, [[message[:77], message[77:]] for message in messages])
        if [stream.digest() for stream in streams] != [hashlib.sha3_256(data).digest() for data in messages]:
            return False
    return True


def _gain(kernel: Kernel) -> float:
    """Return how many times as fast as OpenSSL the code is."""
    data = bytes(_TEST_BYTES)

    def compiled() -> None:
        streams = [Sha3Stream(kernel) for _ in range(LANES)]
        kernel.update(streams, [[data]] * LANES)

    def openssl() -> None:
        for _ in range(LANES):
            hashlib.sha3_256(data)

    return _shortest(openssl) / _shortest(compiled)


def _shortest(work: Callable[[], None]) -> float:
    times: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _function(name: str, lanes: int) -> list[str]:
    """Return the LLVM code of a function that absorbs blocks (FIPS 202, Keccak-p[1600, 24])."""
    return _Assembler(lanes).function(name)


class _Assembler:
    """Writes LLVM code for vectors with a 64-bit word of each message.

    Args:
        lanes: the number of messages.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._type = f"<{lanes} x i64>"
        self._lines: list[str] = []
        self._count = 0

    def function(self, name: str) -> list[str]:
        """Return ``void name(uint64_t *states[], uint8_t *blocks[], int64_t count)``."""
        states = [self._pointer("%states", lane) for lane in range(self._lanes)]
        blocks = [self._pointer("%blocks", lane) for lane in range(self._lanes)]
        before = [self._gather(states, str(8 * word)) for word in range(_WORDS)]
        head, self._lines = self._lines, []
        position = self._add(f"mul i64 %number, {_RATE}")
        words = [f"%word{word}" for word in range(_WORDS)]
        for word in range(_RATE // 8):
            offset = self._add(f"add i64 {position}, {8 * word}")
            words[word] = self._xor(words[word], self._gather(blocks, offset))
        for constant in _round_constants():
            words = self._round(words, constant)
        loop, self._lines = self._lines, []
        for word, value in enumerate(words):
            self._scatter(states, 8 * word, value)
        phis = [
            f"  %word{word} = phi {self._type} [{before[word]}, %entry], [{words[word]}, %loop]"
            for word in range(_WORDS)
        ]
        return [
            f"declare {self._type} @llvm.fshl.v{self._lanes}i64({self._type}, {self._type}, {self._type})",
            f"define void @{name}(ptr %states, ptr %blocks, i64 %count) {{",
            "entry:",
            *head,
            "  br label %loop",
            "loop:",
            "  %number = phi i64 [0, %entry], [%next, %loop]",
            *phis,
            *loop,
            "  %next = add i64 %number, 1",
            "  %more = icmp ult i64 %next, %count",
            "  br i1 %more, label %loop, label %end",
            "end:",
            *self._lines,
            "  ret void",
            "}",
        ]

    def _round(self, words: Sequence[str], constant: int) -> list[str]:
        """Return the words after a round; the word at (x, y) has the index x + 5 y."""
        xor, rotate = self._xor, self._rotate
        columns = [
            xor(xor(xor(words[x], words[x + 5]), xor(words[x + 10], words[x + 15])), words[x + 20])
            for x in range(5)
        ]
        parities = [xor(columns[x - 1], rotate(columns[(x + 1) % 5], 1)) for x in range(5)]
        moved = [""] * _WORDS
        for x, rotations in enumerate(_ROTATIONS):
            for y, rotation in enumerate(rotations):
                moved[y + 5 * ((2 * x + 3 * y) % 5)] = rotate(xor(words[x + 5 * y], parities[x]), rotation)
        after = [
            xor(moved[row + x], self._and_not(moved[row + (x + 1) % 5], moved[row + (x + 2) % 5]))
            for row in range(0, _WORDS, 5)
            for x in range(5)
        ]
        return [xor(after[0], self._constant(constant)), *after[1:]]

    def _add(self, code: str) -> str:
        self._count += 1
        self._lines.append(f"  %v{self._count} = {code}")
        return f"%v{self._count}"

    def _xor(self, first: str, second: str) -> str:
        return self._add(f"xor {self._type} {first}, {second}")

    def _and_not(self, first: str, second: str) -> str:
        inverse = self._xor(first, self._constant(-1))
        return self._add(f"and {self._type} {inverse}, {second}")

    def _rotate(self, value: str, bits: int) -> str:
        function, kind = f"@llvm.fshl.v{self._lanes}i64", self._type
        count = self._constant(bits)
        return self._add(f"call {kind} {function}({kind} {value}, {kind} {value}, {kind} {count})")

    def _constant(self, value: int) -> str:
        return f"<{', '.join([f'i64 {value}'] * self._lanes)}>"

    def _pointer(self, array: str, index: int) -> str:
        place = self._add(f"getelementptr ptr, ptr {array}, i64 {index}")
        return self._add(f"load ptr, ptr {place}")

    def _gather(self, pointers: Sequence[str], offset: str) -> str:
        vector = "poison"
        for lane, pointer in enumerate(pointers):
            place = self._add(f"getelementptr i8, ptr {pointer}, i64 {offset}")
            word = self._add(f"load i64, ptr {place}, align 1")
            vector = self._add(f"insertelement {self._type} {vector}, i64 {word}, i32 {lane}")
        return vector

    def _scatter(self, pointers: Sequence[str], offset: int, vector: str) -> None:
        for lane, pointer in enumerate(pointers):
            place = self._add(f"getelementptr i8, ptr {pointer}, i64 {offset}")
            word = self._add(f"extractelement {self._type} {vector}, i32 {lane}")
            self._lines.append(f"  store i64 {word}, ptr {place}, align 1")


def _round_constants() -> Iterator[int]:
    """Yield the constants of the rounds as signed numbers (FIPS 202, section 3.2.5)."""
    register = 1
    for _ in range(_ROUNDS):
        constant = 0
        for power in range(7):
            if register & 1:
                constant |= 1 << (1 << power) - 1
            register = register << 1 ^ (0x171 if register & 0x80 else 0)
        yield constant - (1 << 64) if constant >> 63 else constant

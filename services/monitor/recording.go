package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"time"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// line is one line of a recording.
type line struct {
	number int
	event  *eventv1.DeviceEvent
	// appended is the append time it names, in ms; 0 is none.
	appended int64
	// clock is what the partition's clock shows when it is handled.
	clock int64
	// refused is why it is no event.
	refused error
}

// own is the time that the line brings along, 0 for none.
func (l *line) own() int64 {
	if l.appended != 0 {
		return l.appended
	}
	occur, _ := codec.UnixMilli(l.event.OccurTime)
	return max(occur, 0)
}

const (
	blockSize = 256 << 10
	lineMost  = 16 << 20
)

var errLongLine = fmt.Errorf("a line is longer than %d bytes", lineMost)

// block is a piece of a recording: whole lines.
type block struct {
	text  []byte
	first int // number of its first line
	lines chan []line
}

// parsed reads a recording. Lines are parsed by as many goroutines as there are
// processors and come in file order; all have ended when the loop over them
// has. Memory is bounded by a few blocks, whatever the recording's length.
func parsed(r io.Reader) iter.Seq2[*line, error] {
	return func(yield func(*line, error) bool) {
		workers := runtime.GOMAXPROCS(0)
		work := make(chan *block)
		order := make(chan *block, 2*workers)
		stop := make(chan struct{})
		failed := make(chan error, 1)
		defer func() {
			close(stop)
			for range order { // until the reader has seen it
			}
		}()
		for range workers {
			go func() {
				for b := range work {
					b.lines <- b.parse()
				}
			}()
		}
		go func() {
			defer close(order)
			defer close(work)
			failed <- cut(r, func(b *block) bool {
				select {
				case order <- b:
				case <-stop:
					return false
				}
				work <- b
				return true
			})
		}()
		for b := range order {
			lines := <-b.lines
			for i := range lines {
				if !yield(&lines[i], nil) {
					return
				}
			}
		}
		if err := <-failed; err != nil {
			yield(nil, err)
		}
	}
}

// cut reads r in blocks of whole lines until take is false.
func cut(r io.Reader, take func(*block) bool) error {
	number := 1
	var rest []byte
	for {
		buf := make([]byte, max(blockSize, 2*len(rest)))
		n := copy(buf, rest)
		m, err := io.ReadFull(r, buf[n:])
		buf = buf[:n+m]
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return fmt.Errorf("read after line %d: %w", number-1, err)
		}
		whole := len(buf)
		if !end {
			whole = bytes.LastIndexByte(buf, '\n') + 1
		}
		rest = buf[whole:]
		if len(rest) > lineMost {
			return fmt.Errorf("line %d: %w", number+bytes.Count(buf[:whole], []byte{'\n'}), errLongLine)
		}
		if whole > 0 {
			b := &block{text: buf[:whole], first: number, lines: make(chan []line, 1)}
			number += bytes.Count(b.text, []byte{'\n'})
			if !take(b) {
				return nil
			}
		}
		if end {
			return nil
		}
	}
}

func (b *block) parse() []line {
	lines := make([]line, 0, 1+len(b.text)/200)
	number := b.first - 1
	for text := range bytes.Lines(b.text) {
		number++
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		l := line{number: number}
		ev, appended, err := codec.ParseRecorded(text)
		switch {
		case err != nil:
			l.refused = err
		case appended.IsZero():
			l.event = ev
		default:
			l.event, l.appended = ev, appended.UnixMilli()
		}
		lines = append(lines, l)
	}
	return lines
}

// aDay is how far a line without append time may move the clock on its own word.
const aDay = 24 * int64(time.Hour/time.Millisecond)

// timed gives each line its clock (contract: CLI). A line that names its append
// time is believed. Another was appended when it occurred, but never before the
// line ahead of it; more than a day ahead of the clock it is believed only if
// the line behind it is within a day of it. Where there is no clock yet, the
// first line sets it, unless the second is more than a day earlier.
func timed(lines iter.Seq2[*line, error]) iter.Seq2[*line, error] {
	return func(yield func(*line, error) bool) {
		var clock int64
		var held *line
		settle := func(next *line) bool {
			if held == nil {
				return true
			}
			l := held
			held = nil
			clock = max(clock, clockAt(clock, l, next))
			// Before any time is known it is the beginning of 1970.
			l.clock = max(clock, 1)
			return yield(l, nil)
		}
		for l, err := range lines {
			if err != nil {
				if settle(nil) {
					yield(nil, err)
				}
				return
			}
			if l.refused != nil {
				if !yield(l, nil) {
					return
				}
				continue
			}
			if !settle(l) {
				return
			}
			held = l
		}
		settle(nil)
	}
}

// clockAt is what l says the clock is; next may be nil.
func clockAt(clock int64, l, next *line) int64 {
	own := l.own()
	if l.appended != 0 || own == 0 {
		return own
	}
	var then int64
	if next != nil {
		then = next.own()
	}
	switch {
	case clock == 0 && then != 0 && then < own-aDay:
		return then
	case clock == 0 || own-clock <= aDay:
		return own
	case then != 0 && then-own <= aDay && own-then <= aDay:
		return own
	}
	return clock
}

package monitor

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/settings"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
	"github.com/tocsin/tocsin/services/monitor/internal/partition"
)

// Recording is a file of events, one a line, in log order: one partition.
type Recording struct {
	// Name is what errors call it.
	Name string
	io.Reader
}

// Replay runs recordings through the very machines that the monitor runs, with
// no Kafka and no clock.
type Replay struct {
	Hold Holds
	// Settings are those of the devices, in force from the start; nil is none.
	Settings *settings.Book
	// Until is how far the clock runs on after the last line; zero is an hour.
	// A time that the clock has passed already changes nothing.
	Until time.Time
}

// afterLast is how far the clock runs on (contract: CLI).
const afterLast = time.Hour

// RefusedError says that lines of a recording were no events. The others were
// replayed; these moved nothing, for no archiver would have taken them.
type RefusedError struct {
	Name  string
	Lines int
	// First are the first few, with line number and reason.
	First []string
}

func (e *RefusedError) Error() string {
	more := ""
	if n := e.Lines - len(e.First); n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("%s: %d lines are no events: %s%s", e.Name, e.Lines, strings.Join(e.First, "; "), more)
}

// Notifications writes one line of JSON for each notification of stage Due
// (contract: CLI), ordered by time, account and device: the same bytes each
// time. Recordings are partitions of one log. The error is a *RefusedError
// when all was written but some lines were refused.
func (r Replay) Notifications(out io.Writer, recordings ...Recording) error {
	w := bufio.NewWriterSize(out, 64<<10)
	var streams []*stream
	defer func() {
		for _, s := range streams {
			s.stop()
		}
	}()
	for _, rec := range recordings {
		streams = append(streams, newStream(r.run(rec)))
	}
	var line []byte
	for {
		var first *stream
		for _, s := range streams {
			if s.more && (first == nil || before(s.head, first.head) < 0) {
				first = s
			}
		}
		if first == nil {
			break
		}
		line = appendNotification(line[:0], first.head)
		if _, err := w.Write(line); err != nil {
			return fmt.Errorf("write notifications: %w", err)
		}
		first.next()
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write notifications: %w", err)
	}
	for _, s := range streams {
		if s.err != nil {
			return s.err
		}
	}
	return nil
}

// before orders what is printed.
func before(a, b *partition.Notification) int {
	return cmp.Or(cmp.Compare(a.Decide, b.Decide), strings.Compare(a.Account, b.Account), strings.Compare(a.Device, b.Device))
}

// run are the notifications of stage Due of one recording, in order. An error
// is the last thing it yields.
func (r Replay) run(rec Recording) iter.Seq2[*partition.Notification, error] {
	return func(yield func(*partition.Notification, error) bool) {
		table := partition.NewTable(r.Hold.rules())
		if err := r.setUp(table); err != nil {
			yield(nil, err)
			return
		}
		refused := RefusedError{Name: rec.Name}
		var sort sorter
		drain := func() bool {
			for _, n := range table.Notifications() {
				if n.Stage == device.Due && !sort.add(n, yield) {
					return false
				}
			}
			table.Commit()
			return true
		}
		var clock int64
		for step, err := range timed(parsed(rec.Reader)) {
			switch {
			case err != nil:
				yield(nil, fmt.Errorf("%s: %w", rec.Name, err))
				return
			case step.refused != nil:
				if refused.Lines++; len(refused.First) < 5 {
					refused.First = append(refused.First, fmt.Sprintf("line %d: %v", step.number, step.refused))
				}
				continue
			}
			clock = step.clock
			table.Advance(clock)
			table.Event(step.event, device.Trace{}, clock)
			table.Advance(clock)
			if !drain() {
				return
			}
		}
		until := clock + afterLast.Milliseconds()
		if !r.Until.IsZero() {
			until = r.Until.UnixMilli()
		}
		table.Advance(max(clock, until))
		if !drain() || !sort.flush(yield) {
			return
		}
		if refused.Lines > 0 {
			yield(nil, &refused)
		}
	}
}

// setUp gives the table the settings.
func (r Replay) setUp(table *partition.Table) error {
	if r.Settings == nil {
		return nil
	}
	for _, account := range r.Settings.Accounts() {
		for _, s := range r.Settings.Devices(account) {
			if err := table.Setting([]byte(codec.DeviceKey(s.AccountId, s.DeviceId)), s, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// sorter orders what comes in order of time by account and device as well.
type sorter struct{ same []partition.Notification }

func (s *sorter) add(n partition.Notification, yield func(*partition.Notification, error) bool) bool {
	if len(s.same) > 0 && s.same[0].Decide != n.Decide {
		if n.Decide < s.same[0].Decide {
			panic(fmt.Sprintf("monitor: decided at %d after %d: %+v", n.Decide, s.same[0].Decide, n))
		}
		if !s.flush(yield) {
			return false
		}
	}
	// Few share a millisecond: insert where it belongs.
	i := len(s.same)
	for i > 0 && before(&s.same[i-1], &n) > 0 {
		i--
	}
	s.same = append(s.same, n)
	copy(s.same[i+1:], s.same[i:])
	s.same[i] = n
	return true
}

func (s *sorter) flush(yield func(*partition.Notification, error) bool) bool {
	for i := range s.same {
		if !yield(&s.same[i], nil) {
			return false
		}
	}
	s.same = s.same[:0]
	return true
}

// stream is a recording's notifications with the first of them at hand.
type stream struct {
	pull func() (*partition.Notification, error, bool)
	stop func()
	head *partition.Notification
	more bool
	err  error
}

func newStream(seq iter.Seq2[*partition.Notification, error]) *stream {
	s := new(stream)
	s.pull, s.stop = iter.Pull2(seq)
	s.next()
	return s
}

func (s *stream) next() {
	n, err, ok := s.pull()
	s.head, s.err, s.more = n, err, ok && err == nil
}

// appendNotification writes the line of n. Ids need no escapes.
func appendNotification(dst []byte, n *partition.Notification) []byte {
	for i, field := range [...][2]string{
		{"at", codec.FormatTime(n.Decide)},
		{"accountId", n.Account},
		{"deviceId", n.Device},
		{"type", n.Type.String()},
		{"since", codec.FormatTime(n.Since)},
		{"notificationId", n.ID()},
		{"outageId", n.OutageID()},
		{"regionId", n.Region},
		{"spanId", n.Span},
	} {
		if i == 0 {
			dst = append(dst, '{')
		} else {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = append(dst, field[0]...)
		dst = append(dst, `":"`...)
		dst = append(dst, field[1]...)
		dst = append(dst, '"')
	}
	return append(dst, "}\n"...)
}

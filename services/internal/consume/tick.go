package consume

import (
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/kafka"
)

// tickType is the message name in the header "type" of a tick; the record has
// no key and an empty value (rule T3).
const tickType = "tocsin.tick.v1.Tick"

const (
	// tickGap is the least time between two ticks of a partition (rule T3).
	tickGap = 100 * time.Millisecond
	// tickMargin is added to the estimate, so that a tick does not come back a
	// cut millisecond before its deadline (rule T3).
	tickMargin = 2 * time.Millisecond
)

// ticker decides when a partition's owner sends a tick. It is a value: undo is
// an assignment.
//
// The owner does not trust its own wall clock. It knows the append time of its
// last tick read and how long ago, by its monotonic clock, it sent that one;
// the sum is its estimate of the broker's clock.
type ticker struct {
	inFlight string    // names the tick on its way; "" is none
	sent     time.Time // when the last one was sent
	// The last own tick read.
	read     bool
	appended time.Time
	readSent time.Time // when that one had been sent
}

// at is when the next tick is wanted, by the local clock; ok is false when one
// is in flight or none is wanted. due is in the partition's clock.
func (t *ticker) at(due time.Time, wanted bool) (at time.Time, ok bool) {
	switch {
	case t.inFlight != "":
		return time.Time{}, false
	case !t.read: // the first one, on assignment, teaches the clock
		at = t.sent
	case !wanted:
		return time.Time{}, false
	default:
		at = t.readSent.Add(due.Sub(t.appended) + tickMargin)
	}
	if earliest := t.sent.Add(tickGap); !t.sent.IsZero() && at.Before(earliest) {
		at = earliest
	}
	return at, true
}

func (t *ticker) send(id string, now time.Time) { t.inFlight, t.sent = id, now }

// failed says that the tick never reached the log.
func (t *ticker) failed(id string) {
	if t.inFlight == id {
		t.inFlight = ""
	}
}

// got takes a tick read from the log, whoever sent it; true is our own in flight.
func (t *ticker) got(rec *kgo.Record) bool {
	if t.inFlight == "" || kafka.Header(rec, kafka.HeaderPublisher) != t.inFlight {
		return false
	}
	t.inFlight, t.read, t.appended, t.readSent = "", true, rec.Timestamp, t.sent
	return true
}

func isTick(rec *kgo.Record) bool {
	return len(rec.Value) == 0 && len(rec.Key) == 0 && kafka.Header(rec, kafka.HeaderType) == tickType
}

func tickRecord(logTopic string, partition int32, id string) *kgo.Record {
	return &kgo.Record{
		Topic: logTopic, Partition: partition, Value: []byte{},
		Headers: []kgo.RecordHeader{
			{Key: kafka.HeaderType, Value: []byte(tickType)},
			{Key: kafka.HeaderPublisher, Value: []byte(id)},
		},
	}
}

// tickID names a tick for ever: one that a former life of the member left
// unread must not be taken for ours, for it was sent at another time.
func tickID(member, life string, n uint64) string {
	return member + "/" + life + "#" + strconv.FormatUint(n, 10)
}

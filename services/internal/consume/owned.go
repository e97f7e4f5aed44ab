package consume

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
)

// positionKey is the key of the position record; a device's or an account's
// key has a slash.
const positionKey = "@position"

// owned is one partition that this member holds: the service's Partition and
// what the runtime itself knows of it.
type owned struct {
	Partition
	id     int32
	ready  bool
	cancel context.CancelFunc // ends a restore that is no longer wanted
	// failure is why the restore before this one failed.
	failure error

	cursor
	before  cursor // as it was before the transaction under way
	touched bool   // by the transaction under way

	// settingsNext is the next offset of each settings topic, so that a record
	// read at the restore is not applied again when it is followed.
	settingsNext map[string]int64
	// end is the log's end as last seen, for the lag; backlog is where it was
	// at the restore: up to there the partition is catching up.
	end, backlog int64
}

// cursor is the runtime's part of the state; it is taken back with the rest.
type cursor struct {
	next  int64 // offset
	clock time.Time
	tick  ticker
}

// touch notes the values to go back to, once a transaction.
func (o *owned) touch() bool {
	if o.touched {
		return false
	}
	o.touched, o.before = true, o.cursor
	return true
}

// step takes one record; reject gets those that cannot be handled.
func (o *owned) step(rec *kgo.Record, skip func(*kgo.Record) bool, reject func(*kgo.Record, error)) {
	if rec.Offset < o.next {
		// Read again after an abort or a lost offset, and handled before.
		if isTick(rec) {
			o.tick.got(rec)
		}
		return
	}
	if rec.Timestamp.After(o.clock) {
		o.clock = rec.Timestamp
	}
	o.Advance(o.clock)
	switch {
	case isTick(rec):
		if t, ok := o.Partition.(Timekeeper); o.tick.got(rec) && ok {
			t.Anchor(rec.Timestamp, o.tick.readSent)
		}
		o.Tick(o.clock)
	case skip != nil && skip(rec):
	default:
		if err := o.Handle(rec, o.clock); err != nil {
			reject(rec, err)
		}
	}
	o.Advance(o.clock)
	o.next = rec.Offset + 1
}

func (o *owned) commit() {
	o.touched = false
	o.Commit()
}

func (o *owned) takeBack() {
	// A tick sent since is on its way whatever became of the transaction, and
	// one that was read will be read again.
	o.touched, o.cursor = false, o.before
	o.Abort()
}

// position is the record that lets the next owner go on from here.
func (o *owned) position(stateTopic, prefix string) (*kgo.Record, error) {
	value, err := (&statev1.Position{NextOffset: o.next, ClockUnixMs: o.clock.UnixMilli()}).MarshalVT()
	if err != nil {
		return nil, fmt.Errorf("encode the position of partition %d: %w", o.id, err)
	}
	return &kgo.Record{Topic: stateTopic, Partition: o.id, Key: []byte(prefix + positionKey), Value: value}, nil
}

// restorePosition takes the former owner's position record.
func (o *owned) restorePosition(value []byte) error {
	var p statev1.Position
	if err := p.UnmarshalVT(value); err != nil {
		return fmt.Errorf("decode position: %w", err)
	}
	if p.NextOffset < 0 || p.ClockUnixMs < 0 {
		return fmt.Errorf("position is out of range: next offset %d, clock %d ms", p.NextOffset, p.ClockUnixMs)
	}
	o.next, o.clock = p.NextOffset, time.UnixMilli(p.ClockUnixMs)
	return nil
}

// Package consume is the partition runtime that monitor and gateway share: it
// owns Kafka's side of a pure machine over one partition's log: assignment,
// restore, the partition's clock, ticks, one transaction a poll, undo, dead
// letters. It does not know what a device, an account or a mail is: that is
// the Partition's, which the service gives it.
//
// Invariant: what a Partition decides is a function of its log and settings.
// Its effects, its state and the offset behind them are committed together or
// not at all.
//
// A partition's life in a member:
//
//	assigned ──> restoring ──> ready ──> dropped (revoked or lost)
//	    ^            │ failed     │
//	    └── again ───┘            └─ poll: step, effects, commit or take back
package consume

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/topic"
)

// Partition is the state of one partition of the log. The member's loop owns
// it: no method is called at the same time as another, so it needs no lock.
//
//	Open → Restore* → Setting* → ready → (Advance | Handle | Tick | Setting)* → Close
//	                                       └── Effects → Commit or Abort ──┘
type Partition interface {
	// Restore takes one record of a state topic, oldest first; a nil value is
	// a tombstone. It checks the bytes; an error says what is wrong with them
	// and stops the member from owning the partition.
	Restore(rec *kgo.Record) error
	// Setting takes one record of a settings topic: all there are before the
	// first event, later ones as they come, never inside a transaction. An
	// error is logged and counted; the old setting stays.
	Setting(rec *kgo.Record) error
	// Advance fires every deadline at or before clock, in the order of rule T3.
	// The runtime calls it before and after each record, also those that are
	// skipped or dead-lettered.
	Advance(clock time.Time)
	// Handle takes one record that is no tick. An error rejects it: the record
	// becomes a dead letter with the error as its reason, and the Partition
	// must be as before.
	Handle(rec *kgo.Record, clock time.Time) error
	// Tick is called for a tick, after Advance (rules T3, G0).
	Tick(clock time.Time)
	// Due is the earliest instant of the partition's clock for which a tick is
	// wanted; one that has passed already asks for a tick at once.
	Due() (at time.Time, ok bool)
	// Effects appends what the steps since the last Commit or Abort ask for:
	// records with topic, partition, key, value and headers, changed state
	// included. It is called once, before Commit or Abort.
	Effects(out []*kgo.Record) []*kgo.Record
	// Commit says that the effects are in Kafka.
	Commit()
	// Abort takes back every step since the last Commit or Abort; Effects may
	// or may not have been called.
	Abort()
	// Close says that the partition is owned elsewhere now. A restore that is
	// no longer wanted may still be running.
	Close()
}

// Timekeeper is a Partition that promises something in real time, such as a
// lease, and so has to know how the log's clock stands to the local one.
type Timekeeper interface {
	// Anchor says that the log's clock read log no earlier than the local clock
	// read local. It is called each time the member has read a tick of its own,
	// before Tick: log is the tick's append time, local is when it was sent. An
	// Abort does not take it back.
	Anchor(log, local time.Time)
}

// Config says what to consume and how.
type Config struct {
	// Group is the consumer group's name.
	Group string
	// Instance names this process among those of the group, stable over
	// restarts: the transactional ids are made of it, so that a restarted
	// process ends what its former life left open. Two living processes with
	// one Instance fence each other.
	Instance string
	// Members is how many members this process adds to the group; 0 is 1.
	Members int
	// Log is the topic that decides.
	Log topic.Topic
	// State are the compacted topics that Effects writes and Restore reads.
	// The runtime keeps the partition's position in the first.
	State []topic.Topic
	// Settings are the compacted topics read beside the log.
	Settings []topic.Topic
	// Others must have as many partitions as Log too: Effects writes to them.
	Others []topic.Topic
	// DeadLetters takes what Handle rejects; its partition count is its own.
	DeadLetters topic.Topic
	// KeyPrefix is put before the keys of the state topics, and records there
	// without it, or with another, are left alone: deployments with different
	// filters on one cluster never restore each other's state. It is empty, or
	// ends in "!", which no id may have.
	KeyPrefix string
	// Skip, when set, says that a record is not ours; it is not handled, but
	// moves the clock. It must look at headers only.
	Skip func(rec *kgo.Record) bool
	// Open makes an empty Partition. partitions is the topic's count.
	Open func(partition, partitions int32) Partition

	Timing Timing
}

// prefixEnd is what a KeyPrefix ends in.
const prefixEnd = "!"

// Timing are the waits of the runtime; zero values are the defaults.
type Timing struct {
	// Session is how long a silent member keeps its partitions (default 6 s).
	Session time.Duration
	// Heartbeat is the time between two signs of life to the group (default 2 s).
	Heartbeat time.Duration
	// Transaction is when the broker ends a forgotten transaction (default 10 s).
	Transaction time.Duration
	// FetchWait is how long the broker may wait for a record (default 500 ms,
	// at least 10 ms); it delays the first fetch of a partition just restored.
	FetchWait time.Duration
}

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.Session, 6*time.Second)
	def(&t.Heartbeat, 2*time.Second)
	def(&t.Transaction, 10*time.Second)
	def(&t.FetchWait, 500*time.Millisecond)
	return t
}

func (c Config) validate() error {
	switch {
	case c.Group == "":
		return errors.New("consume: no group")
	case c.Instance == "":
		return fmt.Errorf("consume %s: no instance name", c.Group)
	case c.Log.Name == "" || len(c.State) == 0 || c.DeadLetters.Name == "":
		return fmt.Errorf("consume %s: log, state and dead letter topics are needed", c.Group)
	case strings.Contains(strings.TrimSuffix(c.KeyPrefix, prefixEnd), prefixEnd), c.KeyPrefix != "" && !strings.HasSuffix(c.KeyPrefix, prefixEnd):
		return fmt.Errorf("consume %s: key prefix %q does not end in its one %q", c.Group, c.KeyPrefix, prefixEnd)
	case c.Open == nil:
		return fmt.Errorf("consume %s: no Open", c.Group)
	case c.Members < 0 || c.Members > 64:
		return fmt.Errorf("consume %s: %d members; 1 to 64 make sense in one process", c.Group, c.Members)
	}
	return nil
}

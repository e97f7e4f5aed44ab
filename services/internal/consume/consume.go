// Package consume is the partition runtime that monitor and gateway share: it
// owns Kafka's side of a pure machine over one partition's log: assignment,
// restore, the partition's clock, ticks, one transaction a poll, undo, dead
// letters. It does not know what a device, an account or a mail is: that is
// the Partition's, which the service gives it.
//
// Invariant: what a Partition decides is a function of its log and settings.
// Its effects, its state and the offset behind them are committed together or
// not at all.
package consume

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
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
	// Abort takes back every step since the last Commit or Abort.
	Abort()
	// Close says that the partition is owned elsewhere now.
	Close()
}

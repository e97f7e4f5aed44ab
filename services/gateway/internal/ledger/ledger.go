// Package ledger owns the accounts of one partition: it turns what is read from
// the log into inputs of the account machine, and what the machine does into
// records. It undoes what was not committed, shares the room for attempts among
// the accounts, and hands an attempt on once its intent is in Kafka. It decides
// nothing about a notification or a mail (package account does), and does not
// render, send or fetch.
//
// Invariants: an attempt is handed on only after its intent was committed, and
// an abort leaves no trace. No account has more attempts under way, or more
// decisions in a tick, than its share.
//
//	notification, result, renewal, tick ──> account.Step ──> changed parts ──> account-state, outbox
//	                                             └─────────> outcomes ───────> deliveries
//	                                             └─────────> intents ── after the commit ──> Send
package ledger

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"

	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/account"
	"github.com/tocsin/tocsin/services/internal/consume"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/topic"
)

// Settings is the view of one partition's accounts.
type Settings interface {
	// Apply takes a record of the topic account-settings.
	Apply(rec *kgo.Record) error
	// Account is never nil.
	Account(id string) *account.Settings
}

// Limits bound what one partition does at a time.
type Limits struct {
	// AccountFlying and Flying are attempts under way, of an account and of the
	// partition. An account whose mails hang uses up its own share.
	AccountFlying, Flying int
	// AccountDecisions and Decisions are taken on one tick; the rest is decided
	// on the next, which is asked for at once.
	AccountDecisions, Decisions int
}

// Options are what the partitions of a gateway have in common.
type Options struct {
	Topics topic.Set
	Rules  account.Rules
	Limits Limits
	// Settings makes the view of a partition.
	Settings func() Settings
	// Send takes an attempt whose intent is in Kafka; it must not block. The
	// ends of its lease and of its time are by the local clock.
	Send   func(mail *outboxv1.Mail, lease, expire time.Time)
	Tracer trace.Tracer
	// Observe is told what was committed.
	Observe Observer
}

// Observer is told of what is in Kafka, by the loop that owns the partition.
type Observer interface {
	Decided(account string, d *account.Decided, span trace.SpanContext)
	Attempted(account string, a *account.Attempted)
	Ignored(why account.Ignored)
	// Holds: so much the partition has after a commit.
	Holds(partition int32, held Held)
	// Closed: the partition is owned elsewhere now.
	Closed(partition int32)
}

// Held is how much a partition has.
type Held struct{ Accounts, Mails, Flying int }

// Partition is a consume.Partition and a consume.Timekeeper.
type Partition struct {
	opts       Options
	number, of int32
	settings   Settings
	book       *book

	clock time.Time
	// anchor: the log's clock read anchor.log no earlier than the local clock
	// read anchor.local. Zero until an own tick was read.
	anchor struct{ log, local time.Time }

	// Since the last commit:
	events []event
	begun  []begun
}

// event is something to tell, in order.
type event struct {
	account string
	effect  account.Effect // *account.Decided, *account.Attempted or account.Counted
	span    trace.Span     // of a decision
}

type begun struct {
	account string
	mail    *account.Mail
}

// Open makes an empty partition, number of so many.
func Open(opts Options, number, of int32) *Partition {
	return &Partition{
		opts: opts, number: number, of: of, settings: opts.Settings(),
		book: newBook(opts.Limits.AccountFlying),
	}
}

// Restore takes a record of the topics account-state and outbox.
func (p *Partition) Restore(rec *kgo.Record) error {
	id, key, part, err := p.decodePart(rec)
	if err != nil {
		return err
	}
	p.book.restore(id, key, part)
	return nil
}

// Setting takes a record of the topic account-settings.
func (p *Partition) Setting(rec *kgo.Record) error { return p.settings.Apply(rec) }

// Anchor says that the log's clock read log no earlier than the local clock
// read local: what makes a lease in the log's time one in ours.
func (p *Partition) Anchor(log, local time.Time) { p.anchor.log, p.anchor.local = log, local }

// local is an instant of the local clock that is not after t of the log's.
func (p *Partition) local(t time.Time) time.Time { return p.anchor.local.Add(t.Sub(p.anchor.log)) }

// Advance ends leases and lives (rule T3).
func (p *Partition) Advance(clock time.Time) {
	p.clock = clock.UTC()
	for {
		id, at, ok := p.book.ends.Min()
		if !ok || at > p.clock.UnixMilli() {
			return
		}
		p.step(id, account.Elapse{At: p.clock}, nil)
	}
}

// Handle takes a notification, a mail's result or a renewal. The error is the
// reason for the dead letter.
func (p *Partition) Handle(rec *kgo.Record, clock time.Time) error {
	id, input, err := decodeInput(rec, clock.UTC())
	if err != nil {
		return err
	}
	if home := kafka.PartitionFor(id, p.of); home != p.number {
		return consume.Reject(consume.WrongPartition, fmt.Errorf("the record is in partition %d, account %q belongs to %d: who wrote it hashes otherwise", p.number, id, home))
	}
	p.step(id, input, nil)
	return nil
}

// Tick decides what was read (rule G0): the oldest first, of each account no
// more than its share, so that a flood of one does not delay the others.
func (p *Partition) Tick(clock time.Time) {
	var more []string
	for left := p.opts.Limits.Decisions; left > 0; {
		id, _, ok := p.book.undecided.Min()
		if !ok {
			break
		}
		state := p.book.accounts[id]
		share := min(left, p.opts.Limits.AccountDecisions)
		for ; share > 0; share-- {
			u := state.Oldest()
			if u == nil {
				break
			}
			p.decide(id, u, clock.UTC())
			left--
		}
		if _, rest := state.Decidable(); rest {
			more = append(more, id)
			p.book.undecided.Remove(id) // until the next tick
		}
	}
	for _, id := range more {
		p.book.index(id)
	}
}

// decide is a span in the notification's trace, which its mails go on from.
func (p *Partition) decide(id string, u *account.Undecided, clock time.Time) {
	span := p.startSpan(id, u)
	p.step(id, account.Decide{At: clock, Trace: traceparent(span.SpanContext())}, span)
}

// Due is when a tick is wanted: for a decision now, for the next lease or life
// that ends, for the next mail to be tried if there is room for it.
func (p *Partition) Due() (at time.Time, ok bool) {
	sooner := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if id, _, found := p.book.undecided.Min(); found {
		sooner(p.book.accounts[id].Oldest().Read)
	}
	if _, ms, found := p.book.ends.Min(); found {
		sooner(time.UnixMilli(ms))
	}
	if p.book.flying < p.opts.Limits.Flying {
		if _, ms, found := p.book.nextStart(); found {
			sooner(time.UnixMilli(ms))
		}
	}
	return at, ok
}

// Effects begins what there is room for, and appends the records.
//
// Attempts are begun here, at the end of a batch, and only when the log was
// read to about its end: one that was begun in the middle of an old stretch of
// the log would have its lease end some records on, before it was ever made.
func (p *Partition) Effects(out []*kgo.Record) []*kgo.Record {
	if p.current() {
		p.begin()
	}
	out = p.deliveries(out)
	return p.changes(out)
}

// current says that a lease that begins at the log's clock is worth having: at
// least half of it is left by the local clock.
func (p *Partition) current() bool {
	return !p.anchor.log.IsZero() && time.Until(p.local(p.clock.Add(p.opts.Rules.Lease))) > p.opts.Rules.Lease/2
}

// begin writes intents, for the account with the fewest under way first, then
// for the one whose mail has waited longest.
func (p *Partition) begin() {
	for p.book.flying < p.opts.Limits.Flying {
		id, ok := p.book.fairest(p.clock.UnixMilli())
		if !ok {
			return
		}
		p.step(id, account.Begin{At: p.clock}, nil)
	}
}

// step runs the machine of one account and sorts its effects.
func (p *Partition) step(id string, in account.Input, span trace.Span) {
	for _, effect := range p.book.step(p.opts.Rules, p.settings.Account(id), id, in) {
		switch e := effect.(type) {
		case account.Changed: // the book has noted it
		case account.Decided:
			p.events = append(p.events, event{id, &e, span})
		case account.Attempted:
			p.events = append(p.events, event{id, &e, nil})
		case account.Counted:
			p.events = append(p.events, event{account: id, effect: e})
		case account.Begun:
			p.begun = append(p.begun, begun{id, e.Mail})
		}
	}
}

// Commit hands the attempts on and tells what happened.
func (p *Partition) Commit() {
	for _, b := range p.begun {
		p.opts.Send(encodeMail(b.account, b.mail), p.local(b.mail.Lease), p.local(b.mail.Expire))
	}
	for _, e := range p.events {
		switch effect := e.effect.(type) {
		case *account.Decided:
			e.span.End()
			p.opts.Observe.Decided(e.account, effect, e.span.SpanContext())
		case *account.Attempted:
			p.opts.Observe.Attempted(e.account, effect)
		case account.Counted:
			p.opts.Observe.Ignored(effect.Why)
		}
	}
	p.opts.Observe.Holds(p.number, p.book.held())
	p.book.commit()
	p.forget()
}

// Abort takes back every step since the last Commit. Spans that never end are
// never exported.
func (p *Partition) Abort() {
	p.book.abort()
	p.forget()
}

func (p *Partition) forget() { p.events, p.begun = p.events[:0], p.begun[:0] }

// Close says that the partition is owned elsewhere now. Attempts under way go
// on: whoever has a result appends it (rules, section 10).
func (p *Partition) Close() { p.opts.Observe.Closed(p.number) }

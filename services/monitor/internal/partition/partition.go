// Package partition joins the machine of package device to one partition of
// Kafka's log: which device has which state, what a record says, what becomes
// of the machine's effects, how a state is written and read back, and how the
// steps of an aborted transaction are taken back. A Table does this without
// Kafka, a Partition is a Table with records around it.
//
// It does not decide what is worth telling (package device), when a
// transaction begins and ends, where the log goes on or when a tick is sent
// (package consume).
//
// Invariant: what a Partition has is what its log and settings say up to the
// last record handled. Nothing is remembered beside the Table.
package partition

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"

	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/consume"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/topic"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
)

// TypeNotification is the value of the header "type" of what comes out.
const TypeNotification = "tocsin.notification.v1.Notification"

// Options are what the partitions of a monitor have in common.
type Options struct {
	Topics   topic.Set
	Defaults device.Rules
	Tracer   trace.Tracer
	// Observe is told of each commit; nil does nothing.
	Observe Observer
}

// Observer is told what came of a partition, by the loop that owns it.
type Observer interface {
	// Committed: the transaction that began to be stepped at begun saw and told
	// this, and so much there is now. It must not keep counts and told.
	Committed(partition int32, begun time.Time, counts *Counts, told []Notification, devices, holds int)
	// Closed: the partition is owned elsewhere now.
	Closed(partition int32)
}

// Partition is a consume.Partition.
type Partition struct {
	opts               Options
	number, partitions int32
	table              *Table

	// Of the transaction under way:
	begun time.Time // zero when there is none
	spans []openSpan
}

// Open makes an empty partition, number of so many. The topic of notifications
// has as many.
func Open(opts Options, number, of int32) *Partition {
	return &Partition{opts: opts, number: number, partitions: of, table: NewTable(opts.Defaults)}
}

// Restore takes a record of the topic device-state.
func (p *Partition) Restore(rec *kgo.Record) error { return p.table.Restore(rec.Key, rec.Value) }

// Setting takes a record of the topic device-settings.
func (p *Partition) Setting(rec *kgo.Record) error {
	var s *settingsv1.DeviceSettings
	if rec.Value != nil {
		s = new(settingsv1.DeviceSettings)
		if err := s.UnmarshalVT(rec.Value); err != nil {
			return fmt.Errorf("settings of %s: unreadable: %w", rec.Key, err)
		}
	}
	return p.table.Setting(rec.Key, s, rec.Timestamp.UnixMilli())
}

// Advance fires what is due (rule T3).
func (p *Partition) Advance(clock time.Time) {
	if p.begun.IsZero() {
		p.begun = time.Now() // for the measure of delays, not for a decision
	}
	p.table.Advance(clock.UnixMilli())
}

// Tick has nothing to do: Advance did it.
func (p *Partition) Tick(time.Time) {}

// Due is the next deadline.
func (p *Partition) Due() (time.Time, bool) {
	at, ok := p.table.Due()
	return time.UnixMilli(at), ok
}

var (
	errNoKey  = errors.New("the record has no key")
	errNoType = errors.New("the record has no header \"type\"")
)

// Handle takes a device event. The error is the reason for the dead letter.
func (p *Partition) Handle(rec *kgo.Record, clock time.Time) error {
	switch t := kafka.Header(rec, kafka.HeaderType); {
	case len(rec.Key) == 0:
		return consume.Reject(consume.NoKey, errNoKey)
	case t == "":
		return consume.Reject(consume.NoType, errNoType)
	case t != codec.TypeEvent:
		return consume.Reject(consume.WrongType, fmt.Errorf("the record is a %q, not a %s", t, codec.TypeEvent))
	}
	ev, err := codec.DecodeEvent(rec.Value)
	if err != nil {
		return err
	}
	if a, d := ev.AccountId, ev.DeviceId; len(rec.Key) != len(a)+1+len(d) ||
		string(rec.Key[:len(a)]) != a || rec.Key[len(a)] != '/' || string(rec.Key[len(a)+1:]) != d {
		return consume.Reject(consume.KeyDiffers, fmt.Errorf("the record's key %q is not that of the event's device, %q", rec.Key, codec.DeviceKey(a, d)))
	}
	if home := kafka.PartitionFor(string(rec.Key), p.partitions); home != p.number {
		return consume.Reject(consume.WrongPartition, fmt.Errorf("the record is in partition %d, its key belongs to %d: who wrote it hashes otherwise", p.number, home))
	}
	p.table.Event(ev, readTrace(rec), clock.UnixMilli())
	return nil
}

// Effects appends the notifications, then the changed states.
func (p *Partition) Effects(out []*kgo.Record) []*kgo.Record {
	told := p.table.Notifications()
	for i := range told {
		out = append(out, p.notification(&told[i]))
	}
	p.table.Changed(func(key, value []byte) {
		out = append(out, &kgo.Record{
			Topic:     p.opts.Topics.DeviceState.Name,
			Partition: p.number,
			Key:       append([]byte(nil), key...),
			Value:     value,
		})
	})
	return out
}

// notification is the record of n. Its partition is the account's, so that one
// gateway has all of an account.
func (p *Partition) notification(n *Notification) *kgo.Record {
	value, err := message(n).MarshalVT()
	if err != nil {
		panic(fmt.Sprintf("partition: encode a notification: %v\n%+v", err, n))
	}
	headers := []kgo.RecordHeader{
		{Key: kafka.HeaderType, Value: []byte(TypeNotification)},
		{Key: kafka.HeaderOccurTime, Value: []byte(codec.FormatTime(n.Since))},
	}
	if parent := p.traceparent(n); parent != "" {
		headers = append(headers, kgo.RecordHeader{Key: kafka.HeaderTraceParent, Value: []byte(parent)})
	}
	return &kgo.Record{
		Topic:     p.opts.Topics.Notifications.Name,
		Partition: kafka.PartitionFor(n.Account, p.partitions),
		Key:       []byte(codec.DeviceKey(n.Account, n.Device)),
		Value:     value,
		Headers:   headers,
	}
}

// message is the notification as others read it. The numbers of types and
// stages are the same in both; TestNumbersAgree holds them together.
func message(n *Notification) *notificationv1.Notification {
	m := &notificationv1.Notification{
		NotificationId: n.ID(),
		AccountId:      n.Account,
		DeviceId:       n.Device,
		Type:           notificationv1.Notification_Type(n.Type),
		Stage:          notificationv1.Notification_Stage(n.Stage),
		SinceTime:      codec.Timestamp(n.Since),
		DecideTime:     codec.Timestamp(n.Decide),
		OutageId:       n.OutageID(),
		Became:         notificationv1.Notification_Type(n.Became),
		PasswordNeeded: n.Password,
		RegionId:       n.Region,
		SpanId:         n.Span,
		Score:          n.Score,
		TimeCorrected:  n.Corrected,
		EventId:        n.EventID,
	}
	switch n.Stage {
	case device.Pending:
		m.DeadlineTime = codec.Timestamp(n.Deadline)
	case device.Due:
		m.Hold = durationpb.New(n.HoldSpent())
	}
	if n.Type == device.OnlineType {
		m.OutageSinceTime = codec.Timestamp(n.Outage)
	}
	return m
}

// Commit says that the effects are in Kafka.
func (p *Partition) Commit() {
	for _, s := range p.spans {
		s.end()
	}
	p.spans = p.spans[:0]
	if p.opts.Observe != nil {
		p.opts.Observe.Committed(p.number, p.begun, p.table.Counts(), p.table.Notifications(), p.table.Devices(), p.table.Holds())
	}
	p.table.Commit()
	p.begun = time.Time{}
}

// Abort takes back every step since the last Commit.
func (p *Partition) Abort() {
	// Spans that never end are never exported.
	p.spans = p.spans[:0]
	p.table.Abort()
	p.begun = time.Time{}
}

// Close says that the partition is owned elsewhere now.
func (p *Partition) Close() {
	if p.opts.Observe != nil {
		p.opts.Observe.Closed(p.number)
	}
}

package ledger

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/account"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/kafka"
)

// The values of the header "type" of what is written.
const (
	TypeDecision    = "tocsin.delivery.v1.Decision"
	TypeMailOutcome = "tocsin.delivery.v1.MailOutcome"
	TypeMail        = "tocsin.outbox.v1.Mail"
	TypeAccountPart = "tocsin.state.v1.AccountPart"
)

// templateVersion is that of the templates a mail is decided with.
const templateVersion = 1

// message is what the generated code offers.
type message interface{ MarshalVT() ([]byte, error) }

// record panics where a message of our own making cannot be encoded: that is
// text which is no UTF-8, and such is refused where it comes in.
func (p *Partition) record(topic, kind, key string, m message) *kgo.Record {
	value, err := m.MarshalVT()
	if err != nil {
		panic(fmt.Sprintf("ledger: encode %s %s: %v", kind, key, err))
	}
	return &kgo.Record{
		Topic: topic, Partition: p.number, Key: []byte(key), Value: value,
		Headers: []kgo.RecordHeader{{Key: kafka.HeaderType, Value: []byte(kind)}},
	}
}

// changes appends what the changed parts are now; a part that came and went
// within the batch leaves no record.
func (p *Partition) changes(out []*kgo.Record) []*kgo.Record {
	for _, c := range p.book.touched {
		part := p.book.now(c.place)
		if part == nil && c.before == nil {
			continue
		}
		topic, key := p.opts.Topics.AccountState.Name, c.account+"/"
		switch c.key.Kind {
		case account.KindMail:
			topic, key = p.opts.Topics.Outbox.Name, key+c.key.ID
		case account.KindUndecided:
			key += partUndecided + "/" + strconv.FormatInt(c.key.Offset, 10)
		case account.KindOutage:
			key += partOutage + "/" + c.key.ID
		case account.KindRecent:
			key += partRecent + "/"
		}
		switch part := part.(type) {
		case nil:
			out = append(out, &kgo.Record{Topic: topic, Partition: p.number, Key: []byte(key)})
		case *account.Mail:
			rec := p.record(topic, TypeMail, key, encodeMail(c.account, part))
			if parent := part.Items[0].Trace; parent != "" {
				rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: kafka.HeaderTraceParent, Value: []byte(parent)})
			}
			out = append(out, rec)
		default:
			out = append(out, p.record(topic, TypeAccountPart, key, encodeState(part)))
		}
	}
	return out
}

func encodeState(part account.Part) *statev1.AccountPart {
	switch part := part.(type) {
	case *account.Undecided:
		return &statev1.AccountPart{Part: &statev1.AccountPart_Undecided{Undecided: &statev1.Undecided{
			Notification: source(part.Notification), Offset: part.Offset, Traceparent: part.Trace,
			AppendUnixMs: part.Read.UnixMilli(), AwaitedUserIds: part.Awaited,
		}}}
	case *account.Outage:
		o := &statev1.Outage{OutageId: part.ID, DeviceId: part.Device, Ended: part.Ended}
		for _, t := range part.Told {
			o.Told = append(o.Told, &statev1.Outage_Told{
				UserId: t.User, MailId: t.Mail, MessageId: t.MessageID, Status: statev1.Outage_Told_Status(t.Status),
			})
		}
		return &statev1.AccountPart{Part: &statev1.AccountPart_Outage{Outage: o}}
	case *account.Recent:
		return &statev1.AccountPart{Part: &statev1.AccountPart_Recent{Recent: &statev1.Recent{NotificationHashes: part.Hashes}}}
	}
	panic(fmt.Sprintf("ledger: encode a %T", part))
}

// source is the message that a notification came as; decodeNotified and
// restored parts always have it.
func source(n *account.Notification) *notificationv1.Notification {
	m, ok := n.Source.(*notificationv1.Notification)
	if !ok {
		panic(fmt.Sprintf("ledger: notification %s came as a %T", n.ID, n.Source))
	}
	return m
}

func encodeMail(id string, m *account.Mail) *outboxv1.Mail {
	out := &outboxv1.Mail{
		MailId: m.ID, AccountId: id, UserId: m.User, Address: m.Address, RecipientName: m.Name,
		Timezone: m.Zone, AccountName: m.Account, TemplateVersion: templateVersion,
		MessageId: m.MessageID, Date: timestamp(m.Date), References: m.References, OutageId: m.Outage,
		Status: outboxv1.Mail_Status(m.Status), Attempt: uint32(m.Attempt), UncertainAttempts: uint32(m.Uncertain),
		Sent: m.Sent, Over: m.Over,
		LeaseTime: timestamp(m.Lease), NextTime: timestamp(m.Next), ExpireTime: timestamp(m.Expire),
	}
	for _, attempt := range m.Silent {
		out.SilentAttempts = append(out.SilentAttempts, uint32(attempt))
	}
	for _, item := range m.Items {
		out.Items = append(out.Items, &outboxv1.Mail_Item{
			Notification: source(item.Notification), DeviceName: item.Device, SiteName: item.Site,
			RegionName: item.Region, Traceparent: item.Trace,
		})
	}
	return out
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// deliveries appends the outcomes, in the order in which they came about.
func (p *Partition) deliveries(out []*kgo.Record) []*kgo.Record {
	topic := p.opts.Topics.Deliveries.Name
	for _, e := range p.events {
		switch effect := e.effect.(type) {
		case *account.Decided:
			out = append(out, p.record(topic, TypeDecision, e.account+"/"+effect.Notification.ID, decision(e.account, effect, e.span)))
		case *account.Attempted:
			out = append(out, p.record(topic, TypeMailOutcome, e.account+"/"+effect.Mail.ID, mailOutcome(e.account, effect)))
		}
	}
	return out
}

var reasons = map[account.Reason]deliveryv1.Outcome_Reason{
	account.Mailed:                deliveryv1.Outcome_MAILED,
	account.UnableToGetSettings:   deliveryv1.Outcome_UNABLE_TO_GET_SETTINGS,
	account.NotificationsDisabled: deliveryv1.Outcome_NOTIFICATIONS_DISABLED,
	account.NoNotificationActions: deliveryv1.Outcome_NO_NOTIFICATION_ACTIONS,
	account.OutsideUsersSchedule:  deliveryv1.Outcome_OUTSIDE_USERS_SCHEDULE,
	account.NotToldOfOutage:       deliveryv1.Outcome_NOT_TOLD_OF_OUTAGE,
	account.TooLate:               deliveryv1.Outcome_LATE,
	account.Sent:                  deliveryv1.Outcome_SENT,
	account.Rejected:              deliveryv1.Outcome_REJECTED,
	account.Retrying:              deliveryv1.Outcome_RETRYING,
	account.Uncertain:             deliveryv1.Outcome_UNCERTAIN,
	account.Expired:               deliveryv1.Outcome_EXPIRED,
	account.Over:                  deliveryv1.Outcome_OVER,
}

func decision(id string, d *account.Decided, span trace.Span) *deliveryv1.Decision {
	delay, less := AlertDelay(d)
	m := &deliveryv1.Decision{
		AccountId: id, Notification: source(d.Notification), DecideTime: timestamppb.New(d.At), Further: d.Further,
		AlertDelay: durationpb.New(delay), AlertDelayWithoutHold: durationpb.New(less),
	}
	if sc := span.SpanContext(); sc.HasTraceID() {
		m.TraceId = sc.TraceID().String()
	}
	for _, o := range d.Outcomes {
		m.Outcomes = append(m.Outcomes, &deliveryv1.Outcome{Reason: reasons[o.Reason], UserIds: o.Users, MailIds: o.Mails})
	}
	return m
}

func mailOutcome(id string, a *account.Attempted) *deliveryv1.MailOutcome {
	m := &deliveryv1.MailOutcome{
		AccountId: id, MailId: a.Mail.ID, UserId: a.Mail.User, Reason: reasons[a.Reason],
		Time: timestamppb.New(a.At), MessageId: a.Mail.MessageID, Settled: a.Settled,
	}
	for _, item := range a.Mail.Items {
		m.NotificationIds = append(m.NotificationIds, item.Notification.ID)
	}
	if a.Result != nil {
		m.Result, _ = a.Result.Source.(*outboxv1.Result)
	} else if a.Attempt != 0 {
		m.Result = &outboxv1.Result{
			AccountId: id, MailId: a.Mail.ID, Attempt: uint32(a.Attempt), Outcome: outboxv1.Result_UNCERTAIN,
			Text: "the lease of the attempt ended and nothing was heard of it", EndTime: timestamppb.New(a.At),
		}
	}
	if delay, less, ok := MailDelay(a); ok {
		m.MailDelay, m.MailDelayWithoutHold = durationpb.New(delay), durationpb.New(less)
	}
	return m
}

// AlertDelay is from the occur time to the decision, and the same less the
// deliberate hold (rules, section 10). Clocks differ: neither is below 0.
func AlertDelay(d *account.Decided) (delay, withoutHold time.Duration) {
	delay = max(0, d.At.Sub(d.Notification.Since))
	return delay, max(0, delay-d.Notification.Hold)
}

// MailDelay is from the first occur time to the relay's 250; ok is false where
// there was none.
func MailDelay(a *account.Attempted) (delay, withoutHold time.Duration, ok bool) {
	if a.Reason != account.Sent || a.Result == nil {
		return 0, 0, false
	}
	first := a.Mail.Items[0].Notification
	for _, item := range a.Mail.Items[1:] {
		if item.Notification.Since.Before(first.Since) {
			first = item.Notification
		}
	}
	delay = max(0, a.Result.End.Sub(first.Since))
	return delay, max(0, delay-first.Hold), true
}

func (p *Partition) startSpan(id string, u *account.Undecided) trace.Span {
	n := u.Notification
	parent := trace.ContextWithRemoteSpanContext(context.Background(), codec.ParseTrace(u.Trace, ""))
	_, span := p.opts.Tracer.Start(parent, "decide "+n.Type.String(), trace.WithAttributes(
		attribute.String("tocsin.notification.id", n.ID),
		attribute.String("tocsin.notification.type", n.Type.String()),
		attribute.String("tocsin.account.id", id),
		attribute.String("tocsin.device.id", n.Device),
		attribute.String("tocsin.etag.occur_time", codec.FormatTime(n.Since.UnixMilli())),
	))
	return span
}

func traceparent(sc trace.SpanContext) string {
	parent, _ := codec.FormatTrace(sc)
	return parent
}

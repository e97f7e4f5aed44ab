package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/account"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/consume"
	"github.com/tocsin/tocsin/services/internal/kafka"
)

// The values of the header "type" of what is read from the log.
const (
	TypeNotification = "tocsin.notification.v1.Notification"
	TypeResult       = "tocsin.outbox.v1.Result"
	TypeRenewal      = "tocsin.outbox.v1.Renewal"
)

var (
	errNoKey  = errors.New("the record has no key")
	errNoType = errors.New("the record has no header \"type\"")
)

// decodeInput reads a record of the log; id is its account. It believes
// nothing: whoever can write to the topic can write anything.
func decodeInput(rec *kgo.Record, clock time.Time) (id string, in account.Input, err error) {
	if len(rec.Key) == 0 {
		return "", nil, consume.Reject(consume.NoKey, errNoKey)
	}
	switch t := kafka.Header(rec, kafka.HeaderType); t {
	case "":
		return "", nil, consume.Reject(consume.NoType, errNoType)
	case TypeNotification:
		id, in, err = decodeNotified(rec, clock)
	case TypeResult:
		id, in, err = decodeResult(rec, clock)
	case TypeRenewal:
		id, in, err = decodeRenewal(rec, clock)
	default:
		return "", nil, consume.Reject(consume.WrongType, fmt.Errorf("the record is a %q, which the gateway does not know", t))
	}
	return id, in, err
}

func decodeNotified(rec *kgo.Record, clock time.Time) (string, account.Input, error) {
	m := new(notificationv1.Notification)
	if err := m.UnmarshalVT(rec.Value); err != nil {
		return "", nil, fmt.Errorf("decode notification: %w", err)
	}
	n, err := notification(m)
	if err != nil {
		return "", nil, err
	}
	if key := m.GetAccountId() + "/" + m.GetDeviceId(); key != string(rec.Key) {
		return "", nil, consume.Reject(consume.KeyDiffers, fmt.Errorf("the record's key %q is not that of the notification's device, %q", rec.Key, key))
	}
	return m.GetAccountId(), account.Notified{
		At: clock, Offset: rec.Offset, Notification: n, Trace: kafka.Header(rec, kafka.HeaderTraceParent),
	}, nil
}

// notification checks m, which must not be changed any more.
func notification(m *notificationv1.Notification) (*account.Notification, error) {
	fault := func(field, what string) (*account.Notification, error) {
		return nil, fmt.Errorf("notification %q: %s: %s", m.GetNotificationId(), field, what)
	}
	for _, f := range []struct {
		name, id string
		optional bool
	}{
		{"notification_id", m.GetNotificationId(), false},
		{"account_id", m.GetAccountId(), false},
		{"device_id", m.GetDeviceId(), false},
		{"outage_id", m.GetOutageId(), true},
		{"region_id", m.GetRegionId(), true},
	} {
		if !codec.ValidID(f.id) && (f.id != "" || !f.optional) {
			return fault(f.name, strconv.Quote(f.id)+" is no id")
		}
	}
	n := &account.Notification{
		ID: m.GetNotificationId(), Device: m.GetDeviceId(), Hold: m.GetHold().AsDuration(),
		Outage: m.GetOutageId(), Region: m.GetRegionId(), Source: m,
	}
	if n.Type = types[m.GetType()]; n.Type == 0 {
		return fault("type", m.GetType().String()+" is not known here")
	}
	if n.Stage = stages[m.GetStage()]; n.Stage == 0 {
		return fault("stage", m.GetStage().String()+" is not known here")
	}
	if !m.GetSinceTime().IsValid() {
		return fault("since_time", "is missing or no time")
	}
	n.Since = m.GetSinceTime().AsTime()
	if n.Type != account.Alert && n.Stage == account.Due && n.Outage == "" {
		return fault("outage_id", "is missing in a status that is due")
	}
	if n.Type == account.Alert {
		n.Outage = "" // nothing of an alert may look like an outage's
	}
	return n, nil
}

var types = map[notificationv1.Notification_Type]account.Type{
	notificationv1.Notification_ALERT:            account.Alert,
	notificationv1.Notification_OFFLINE:          account.Offline,
	notificationv1.Notification_ONLINE:           account.Online,
	notificationv1.Notification_INTERNET_OFFLINE: account.InternetOffline,
}

var stages = map[notificationv1.Notification_Stage]account.Stage{
	notificationv1.Notification_PENDING:   account.Pending,
	notificationv1.Notification_WITHDRAWN: account.Withdrawn,
	notificationv1.Notification_DUE:       account.Due,
	notificationv1.Notification_LATE:      account.Late,
	notificationv1.Notification_PAUSED:    account.Paused,
	notificationv1.Notification_RESUMED:   account.Resumed,
}

func decodeResult(rec *kgo.Record, clock time.Time) (string, account.Input, error) {
	m := new(outboxv1.Result)
	if err := m.UnmarshalVT(rec.Value); err != nil {
		return "", nil, fmt.Errorf("decode result: %w", err)
	}
	if err := checkFact(rec, m.GetAccountId(), m.GetMailId(), m.GetAttempt()); err != nil {
		return "", nil, fmt.Errorf("result: %w", err)
	}
	outcome := outcomes[m.GetOutcome()]
	if outcome == 0 {
		return "", nil, fmt.Errorf("result of mail %s: outcome %s is not known here", m.GetMailId(), m.GetOutcome())
	}
	end := clock
	if m.GetEndTime().IsValid() {
		end = m.GetEndTime().AsTime()
	}
	return m.GetAccountId(), account.Ended{At: clock, Result: account.Result{
		Mail: m.GetMailId(), Attempt: int(m.GetAttempt()), Outcome: outcome, End: end, Source: m,
	}}, nil
}

var outcomes = map[outboxv1.Result_Outcome]account.Reason{
	outboxv1.Result_SENT:      account.Sent,
	outboxv1.Result_REJECTED:  account.Rejected,
	outboxv1.Result_RETRYING:  account.Retrying,
	outboxv1.Result_UNCERTAIN: account.Uncertain,
}

func decodeRenewal(rec *kgo.Record, clock time.Time) (string, account.Input, error) {
	m := new(outboxv1.Renewal)
	if err := m.UnmarshalVT(rec.Value); err != nil {
		return "", nil, fmt.Errorf("decode renewal: %w", err)
	}
	if err := checkFact(rec, m.GetAccountId(), m.GetMailId(), m.GetAttempt()); err != nil {
		return "", nil, fmt.Errorf("renewal: %w", err)
	}
	return m.GetAccountId(), account.Renewed{At: clock, Mail: m.GetMailId(), Attempt: int(m.GetAttempt())}, nil
}

func checkFact(rec *kgo.Record, id, mail string, attempt uint32) error {
	switch {
	case id != string(rec.Key):
		return consume.Reject(consume.KeyDiffers, fmt.Errorf("the record's key %q is not its account, %q", rec.Key, id))
	case mail == "":
		return errors.New("mail_id is missing")
	case attempt == 0:
		return fmt.Errorf("mail %s: attempt is missing; the first is 1", mail)
	}
	return nil
}

// Keys of parts in tocsin.account-state are "account/<kind>/<id>"; those of
// tocsin.outbox are "account/<mail id>".
const (
	partUndecided = "undecided"
	partOutage    = "outage"
	partRecent    = "recent"
)

// decodePart reads a record of a state topic; part is nil for a tombstone.
func (p *Partition) decodePart(rec *kgo.Record) (id string, key account.Key, part account.Part, err error) {
	if rec.Topic == p.opts.Topics.Outbox.Name {
		id, key, err = mailKey(string(rec.Key))
		if err == nil && rec.Value != nil {
			part, err = decodeMail(id, rec.Value)
		}
	} else {
		id, key, err = partKey(string(rec.Key))
		if err == nil && rec.Value != nil {
			part, err = decodeState(rec.Value)
		}
	}
	if err == nil && part != nil && part.Key() != key {
		err = fmt.Errorf("its value is %+v", part.Key())
	}
	if err != nil {
		return "", account.Key{}, nil, fmt.Errorf("state of %q: %w", rec.Key, err)
	}
	return id, key, part, nil
}

func mailKey(text string) (id string, key account.Key, err error) {
	id, mail, ok := strings.Cut(text, "/")
	if !ok || id == "" || mail == "" {
		return "", account.Key{}, errors.New("the key is not account/mail")
	}
	return id, account.Key{Kind: account.KindMail, ID: mail}, nil
}

func partKey(text string) (id string, key account.Key, err error) {
	id, rest, ok := strings.Cut(text, "/")
	kind, name, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 || id == "" {
		return "", account.Key{}, errors.New("the key is not account/kind/id")
	}
	switch kind {
	case partUndecided:
		offset, err := strconv.ParseInt(name, 10, 64)
		if err != nil {
			return "", account.Key{}, fmt.Errorf("the key ends in no offset: %w", err)
		}
		return id, account.Key{Kind: account.KindUndecided, Offset: offset}, nil
	case partOutage:
		return id, account.Key{Kind: account.KindOutage, ID: name}, nil
	case partRecent:
		return id, account.Key{Kind: account.KindRecent, ID: name}, nil
	}
	return "", account.Key{}, fmt.Errorf("there is no kind %q", kind)
}

func decodeState(value []byte) (account.Part, error) {
	var m statev1.AccountPart
	if err := m.UnmarshalVT(value); err != nil {
		return nil, err
	}
	switch part := m.GetPart().(type) {
	case *statev1.AccountPart_Undecided:
		return decodeUndecided(part.Undecided)
	case *statev1.AccountPart_Outage:
		return decodeOutage(part.Outage)
	case *statev1.AccountPart_Recent:
		return &account.Recent{Hashes: part.Recent.GetNotificationHashes()}, nil
	}
	return nil, errors.New("no part is set, or one that is not known here")
}

func decodeUndecided(m *statev1.Undecided) (account.Part, error) {
	n, err := notification(m.GetNotification())
	if err != nil {
		return nil, err
	}
	return &account.Undecided{
		Notification: n, Offset: m.GetOffset(), Read: time.UnixMilli(m.GetAppendUnixMs()).UTC(),
		Trace: m.GetTraceparent(), Awaited: m.GetAwaitedUserIds(),
	}, nil
}

func decodeOutage(m *statev1.Outage) (account.Part, error) {
	o := &account.Outage{ID: m.GetOutageId(), Device: m.GetDeviceId(), Ended: m.GetEnded()}
	for _, t := range m.GetTold() {
		if t.GetStatus() < statev1.Outage_Told_OPEN || t.GetStatus() > statev1.Outage_Told_UNTOLD {
			return nil, fmt.Errorf("outage %s: status %s of mail %s is not known here", o.ID, t.GetStatus(), t.GetMailId())
		}
		o.Told = append(o.Told, account.Told{
			User: t.GetUserId(), Mail: t.GetMailId(), MessageID: t.GetMessageId(), Status: account.ToldStatus(t.GetStatus()),
		})
	}
	return o, nil
}

func decodeMail(id string, value []byte) (account.Part, error) {
	var m outboxv1.Mail
	if err := m.UnmarshalVT(value); err != nil {
		return nil, err
	}
	fault := func(field, what string) (account.Part, error) {
		return nil, fmt.Errorf("mail %s: %s: %s", m.GetMailId(), field, what)
	}
	status := account.MailStatus(m.GetStatus())
	switch {
	case m.GetAccountId() != id:
		return fault("account_id", fmt.Sprintf("is %q", m.GetAccountId()))
	case status < account.Waiting || status > account.Unanswered:
		return fault("status", m.GetStatus().String()+" is not known here")
	case status == account.Attempting && (m.GetAttempt() == 0 || !m.GetLeaseTime().IsValid()):
		return fault("lease_time", "an attempt is under way without a number or a lease")
	case status == account.Waiting && !m.GetNextTime().IsValid():
		return fault("next_time", "is missing")
	case !m.GetExpireTime().IsValid():
		return fault("expire_time", "is missing")
	case len(m.GetItems()) == 0:
		return fault("items", "there are none")
	}
	out := &account.Mail{
		ID: m.GetMailId(), User: m.GetUserId(), Address: m.GetAddress(), Name: m.GetRecipientName(),
		Zone: m.GetTimezone(), Account: m.GetAccountName(), MessageID: m.GetMessageId(),
		Date: instant(m.GetDate()), References: m.GetReferences(), Outage: m.GetOutageId(),
		Status: status, Attempt: int(m.GetAttempt()), Uncertain: int(m.GetUncertainAttempts()),
		Sent: m.GetSent(), Over: m.GetOver(),
		Lease: instant(m.GetLeaseTime()), Next: instant(m.GetNextTime()), Expire: instant(m.GetExpireTime()),
	}
	for _, attempt := range m.GetSilentAttempts() {
		out.Silent = append(out.Silent, int(attempt))
	}
	for _, item := range m.GetItems() {
		n, err := notification(item.GetNotification())
		if err != nil {
			return fault("items", err.Error())
		}
		out.Items = append(out.Items, account.Item{
			Notification: n, Device: item.GetDeviceName(), Site: item.GetSiteName(),
			Region: item.GetRegionName(), Trace: item.GetTraceparent(),
		})
	}
	out.Type = out.Items[0].Notification.Type
	return out, nil
}

// instant is the zero time for one that is absent.
func instant(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

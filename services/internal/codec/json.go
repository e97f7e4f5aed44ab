package codec

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
)

// ParseEvent reads the JSON form of one event (contract: Ingest) and validates
// it. Errors are of type *FieldError and name the first wrong field. Unknown
// fields and names are refused; the name of an unknown status state is kept
// (rule S1). A null field counts as absent.
func ParseEvent(text []byte) (*eventv1.DeviceEvent, error) {
	p := borrow(text, false)
	defer p.giveBack()
	return p.event()
}

// ParseRecorded reads one line of a replay file: an event with an optional
// appendTime, zero where there is none.
func ParseRecorded(line []byte) (ev *eventv1.DeviceEvent, appendTime time.Time, err error) {
	p := borrow(line, true)
	defer p.giveBack()
	ev, err = p.event()
	if err != nil {
		return nil, time.Time{}, err
	}
	if p.appended != nil {
		appendTime = p.appended.AsTime()
	}
	return ev, appendTime, nil
}

// MarshalEventJSON writes the JSON form of an event on one line, without a line
// break: fields in the order of the schema, those that have their zero value
// left out, 64-bit numbers as strings, as proto3 JSON has it.
func MarshalEventJSON(ev *eventv1.DeviceEvent) []byte { return AppendEventJSON(nil, ev) }

// parser reads one event from a token stream. Reading tokens by hand is several
// times as fast as protojson (BenchmarkParseEvent) and names each wrong field.
type parser struct {
	in  bytes.Reader
	dec *jsontext.Decoder
	// recorded allows appendTime, which goes to appended.
	recorded bool
	appended *timestamppb.Timestamp
	// nested is the field whose members are read, with a dot ("status.").
	nested string
}

var parsers = sync.Pool{New: func() any {
	p := new(parser)
	p.dec = jsontext.NewDecoder(&p.in)
	return p
}}

func borrow(text []byte, recorded bool) *parser {
	p, _ := parsers.Get().(*parser) // New makes nothing else
	p.in.Reset(text)
	p.dec.Reset(&p.in)
	p.recorded, p.appended, p.nested = recorded, nil, ""
	return p
}

func (p *parser) giveBack() {
	p.in.Reset(nil)
	parsers.Put(p)
}

// unreadable turns an error of the JSON reader into ours.
func (p *parser) unreadable(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fieldError("", "the JSON ends too early, at byte %d", p.dec.InputOffset())
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return fieldError(p.dec.StackPointer().LastToken(), "is there twice")
	}
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		return fieldError("", "not readable as JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)
	}
	return fieldError("", "not readable as JSON: %v", err)
}

func (p *parser) event() (*eventv1.DeviceEvent, error) {
	ev := new(eventv1.DeviceEvent)
	if kind := p.dec.PeekKind(); kind != '{' && kind != 0 {
		return nil, fieldError("", "an event is a JSON object, this is %s", kindName(kind))
	}
	if err := p.object(func(name string) error { return p.eventField(ev, name) }); err != nil {
		return nil, err
	}
	if _, err := p.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, fieldError("", "there is more after the event, at byte %d: one event a line", p.dec.InputOffset())
	}
	if err := ValidateEvent(ev); err != nil {
		return nil, err
	}
	if ev.Kind == nil && ev.Code == "" {
		return nil, fieldError("status", "is missing: an event has a status, motion, heartbeat or code")
	}
	return ev, nil
}

func (p *parser) eventField(ev *eventv1.DeviceEvent, name string) (err error) {
	switch name {
	case "eventId":
		ev.EventId, err = p.text(name)
	case "accountId":
		ev.AccountId, err = p.text(name)
	case "deviceId":
		ev.DeviceId, err = p.text(name)
	case "sourceId":
		ev.SourceId, err = p.text(name)
	case "sourceEpoch":
		ev.SourceEpoch, err = p.text(name)
	case "sequence":
		ev.Sequence, err = p.whole(name, 64)
	case "occurTime":
		ev.OccurTime, err = p.time(name)
	case "receiveTime":
		ev.ReceiveTime, err = p.time(name)
	case "spooled":
		ev.Spooled, err = p.yes(name)
	case "restated":
		ev.Restated, err = p.yes(name)
	case "timeCorrected":
		ev.TimeCorrected, err = p.yes(name)
	case "code":
		ev.Code, err = p.text(name)
	case "status":
		if ok, err := p.begin(ev, name); !ok {
			return err
		}
		s := new(eventv1.Status)
		ev.Kind = &eventv1.DeviceEvent_Status{Status: s}
		return p.members("status.", func(name string) error { return p.statusField(s, name) })
	case "motion":
		if ok, err := p.begin(ev, name); !ok {
			return err
		}
		m := new(eventv1.Motion)
		ev.Kind = &eventv1.DeviceEvent_Motion{Motion: m}
		return p.members("motion.", func(name string) error { return p.motionField(m, name) })
	case "heartbeat":
		if ok, err := p.begin(ev, name); !ok {
			return err
		}
		h := new(eventv1.Heartbeat)
		ev.Kind = &eventv1.DeviceEvent_Heartbeat{Heartbeat: h}
		return p.members("heartbeat.", func(name string) error { return p.heartbeatField(h, name) })
	case "appendTime":
		if !p.recorded {
			return p.unknown(name)
		}
		p.appended, err = p.time(name)
	default:
		return p.unknown(name)
	}
	return err
}

func (p *parser) statusField(s *eventv1.Status, name string) error {
	switch name {
	case "bits":
		bits, err := p.whole(name, 32)
		s.Bits = uint32(bits)
		return err
	case "kind":
		kind, err := p.text(name)
		if err != nil || kind == "" {
			return err
		}
		value, known := eventv1.Status_Kind_value[kind]
		if !known {
			return p.wrong(name, "%s is not known: CAMERA or BRIDGE", quote(kind))
		}
		s.Kind = eventv1.Status_Kind(value)
		return nil
	case "state":
		state, err := p.text(name)
		if err != nil || state == "" {
			return err
		}
		value, known := eventv1.Status_State_value[state]
		if !known {
			s.UnknownState = state
		}
		s.State = eventv1.Status_State(value)
		return nil
	}
	return p.unknown(name)
}

func (p *parser) motionField(m *eventv1.Motion, name string) (err error) {
	switch name {
	case "phase":
		var phase string
		if phase, err = p.text(name); err != nil || phase == "" {
			return err
		}
		value, known := eventv1.Motion_Phase_value[phase]
		if !known {
			return p.wrong(name, "%s is not known: START, UPDATE or END", quote(phase))
		}
		m.Phase = eventv1.Motion_Phase(value)
	case "spanId":
		m.SpanId, err = p.text(name)
	case "regionId":
		m.RegionId, err = p.text(name)
	case "score":
		m.Score, err = p.float(name)
	default:
		return p.unknown(name)
	}
	return err
}

func (p *parser) heartbeatField(h *eventv1.Heartbeat, name string) (err error) {
	if name != "backBy" {
		return p.unknown(name)
	}
	h.BackBy, err = p.time(name)
	return err
}

// begin checks that an object comes, and that it is the event's first kind.
// False without an error: it is null, which was read and is no kind.
func (p *parser) begin(ev *eventv1.DeviceEvent, name string) (bool, error) {
	switch kind := p.dec.PeekKind(); kind {
	case 'n':
		if _, err := p.dec.ReadToken(); err != nil {
			return false, p.unreadable(err)
		}
		return false, nil
	case '{', 0: // 0 is an error, which the next read returns
	default:
		return false, p.wrong(name, "must be an object, not %s", kindName(kind))
	}
	if ev.Kind != nil {
		return false, p.wrong(name, "is a second kind: an event has one of status, motion, heartbeat")
	}
	return true, nil
}

// members reads the object of an event's kind; prefix names it in errors.
func (p *parser) members(prefix string, member func(name string) error) error {
	p.nested = prefix
	err := p.object(member)
	p.nested = ""
	return err
}

// object reads a JSON object and calls member for each name; member reads the
// value.
func (p *parser) object(member func(name string) error) error {
	if _, err := p.dec.ReadToken(); err != nil {
		return p.unreadable(err)
	}
	for p.dec.PeekKind() != '}' {
		quoted, err := p.dec.ReadValue()
		if err != nil {
			return p.unreadable(err)
		}
		name, known := names[string(quoted)]
		if !known {
			// Written with escapes, or not ours.
			unquoted, _ := jsontext.AppendUnquote(nil, quoted)
			name = string(unquoted)
		}
		if err := member(name); err != nil {
			return err
		}
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return p.unreadable(err)
	}
	return nil
}

// names saves a string for each name that is read.
var names = func() map[string]string {
	m := make(map[string]string)
	for _, name := range []string{
		"eventId", "accountId", "deviceId", "sourceId", "sourceEpoch", "sequence", "occurTime", "receiveTime",
		"spooled", "restated", "timeCorrected", "code", "status", "motion", "heartbeat", "appendTime",
		"bits", "kind", "state", "phase", "spanId", "regionId", "score", "backBy",
	} {
		m[strconv.Quote(name)] = name
	}
	return m
}()

func (p *parser) wrong(name, format string, args ...any) error {
	return fieldError(p.nested+name, format, args...)
}

func (p *parser) unknown(name string) error {
	return p.wrong(name, "is no field of an event")
}

// value reads a token and reports whether it is one of the kinds that field
// may have; null counts as absent: the token is null and there is no error.
func (p *parser) value(name, kinds, want string) (jsontext.Token, error) {
	tok, err := p.dec.ReadToken()
	if err != nil {
		return tok, p.unreadable(err)
	}
	kind := tok.Kind()
	if kind == 'n' {
		return tok, nil
	}
	for i := range len(kinds) {
		if jsontext.Kind(kinds[i]) == kind {
			return tok, nil
		}
	}
	return tok, p.wrong(name, "must be %s, not %s", want, kindName(kind))
}

func (p *parser) text(name string) (string, error) {
	tok, err := p.value(name, `"`, "a string")
	if err != nil || tok.Kind() == 'n' {
		return "", err
	}
	return tok.String(), nil
}

func (p *parser) yes(name string) (bool, error) {
	tok, err := p.value(name, "tf", "true or false")
	if err != nil || tok.Kind() == 'n' {
		return false, err
	}
	return tok.Bool(), nil
}

// whole reads a number of at most bits, or a string of its digits.
func (p *parser) whole(name string, bits int) (uint64, error) {
	tok, err := p.value(name, `0"`, "a whole number")
	if err != nil || tok.Kind() == 'n' {
		return 0, err
	}
	text := tok.String()
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		return 0, p.wrong(name, "%s is no whole number from 0 to 2^%d-1", quote(text), bits)
	}
	return n, nil
}

func (p *parser) float(name string) (float64, error) {
	tok, err := p.value(name, "0", "a number")
	if err != nil || tok.Kind() == 'n' {
		return 0, err
	}
	f, err := tok.Float()
	if err != nil {
		return 0, p.wrong(name, "%s is out of range", quote(tok.String()))
	}
	return f, nil
}

func (p *parser) time(name string) (*timestamppb.Timestamp, error) {
	tok, err := p.value(name, `"`, "an RFC 3339 time such as \"2026-03-01T12:00:00.250Z\"")
	if err != nil || tok.Kind() == 'n' {
		return nil, err
	}
	ms, err := ParseTime(tok.String())
	if err != nil {
		return nil, p.wrong(name, "%v", err)
	}
	return Timestamp(ms), nil
}

func kindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "something else"
}

package feeds

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// eenPoll is the provider's poll stream: WebSocket messages
//
//	{"status_code":200,"data":{"<device>":{"status":1441847,"event":{"EMES":{…}}}}}
//
// and HTTP replies, {"cameras":{"<device>":{…}},"token":"…"}, one a line. A
// device is named by the outer key; what an event says of itself as "cameraid"
// may be another. "?account=" says whose they are, "?bridge=" (again and again,
// or with commas) which of them are bridges, whose bits read differently (rule
// S1); the settings may say so too.
var eenPoll = Source{
	Name:       "een-poll",
	MediaTypes: []string{ndjson, jsonText},
	parse:      parsePoll,
}

// Bits of a status that event codes change (rule S2).
const (
	bitOn         = 1 << 17
	bitStreaming  = 1 << 18
	bitRegistered = 1 << 20
)

// pollCode says what one four-letter code means. The zero value is a code
// without effect: it goes on by name, as an event without a kind.
type pollCode struct {
	phase eventv1.Motion_Phase
	// span and region are the fields that name them.
	span, region string
	fold         Fold
	heartbeat    bool
}

// pollCodes are the codes that mean something to Tocsin.
var pollCodes = map[string]pollCode{
	// Registered with the cloud.
	"RCON": {fold: Fold{Set: bitRegistered}},
	"RCOF": {fold: Fold{Clear: bitRegistered, Alone: eventv1.Status_INTERNET_OFFLINE}},
	"RCHB": {heartbeat: true},
	// Streaming to the bridge.
	"CSAU": {fold: Fold{Set: bitStreaming}},
	"CSDU": {fold: Fold{Clear: bitStreaming}},
	"CSSU": {heartbeat: true},
	// Switched on by the user.
	"CONN": {fold: Fold{Set: bitOn}},
	"COFF": {fold: Fold{Clear: bitOn, Alone: eventv1.Status_OFF}},
	// Motion of the whole frame, repeated every 10 s while it lasts.
	"EMES": {phase: eventv1.Motion_START, span: "eventid"},
	"EMEU": {phase: eventv1.Motion_UPDATE, span: "eventid"},
	"EMEE": {phase: eventv1.Motion_END, span: "eventid"},
	// Motion in a region.
	"ROMS": {phase: eventv1.Motion_START, span: "eventid", region: "roiid"},
	"ROMU": {phase: eventv1.Motion_UPDATE, span: "eventid", region: "roiid"},
	"ROME": {phase: eventv1.Motion_END, span: "eventid", region: "roiid"},
	// The provider's own alerts on such motion. The start names the motion's
	// event, so that it doubles the EMES or ROMS of the same motion (rule M2);
	// the end names only the alert.
	"ALMS": {phase: eventv1.Motion_START, span: "eventid"},
	"ALME": {phase: eventv1.Motion_END, span: "alertmotionid"},
	"ALRS": {phase: eventv1.Motion_START, span: "eventid", region: "alertroiid"},
	"ALRE": {phase: eventv1.Motion_END, region: "alertroiid"},
}

// pollMessage is a WebSocket message or an HTTP reply.
type pollMessage struct {
	StatusCode int                       `json:"status_code"`
	Message    string                    `json:"message"`
	Data       map[string]jsontext.Value `json:"data"`
	Cameras    map[string]jsontext.Value `json:"cameras"`
}

// pollDevice is what a message says of one device; previews and videos, which
// may be there too, are no events.
type pollDevice struct {
	Status      jsontext.Value            `json:"status"`
	Status64    jsontext.Value            `json:"status64"`
	StatusHex   jsontext.Value            `json:"status_hex"`
	StatusHex64 jsontext.Value            `json:"status_hex64"`
	Event       map[string]jsontext.Value `json:"event"`
}

// lenient is how others' JSON is read.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

func parsePoll(m Message) ([]Item, error) {
	account, err := parameter(m.Query, "account")
	if err != nil {
		return nil, err
	}
	p := poll{account: account, received: m.Received, bridges: map[string]bool{}}
	for _, ids := range m.Query["bridge"] {
		for id := range strings.SplitSeq(ids, ",") {
			p.bridges[id] = true
		}
	}
	texts, err := split(m.MediaType, m.Body)
	if err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, fieldErrorf("", "there is no message in it")
	}
	for i, text := range texts {
		p.message(i, text)
	}
	return p.items, nil
}

// poll collects the items of one request.
type poll struct {
	account  string
	bridges  map[string]bool
	received time.Time
	items    []Item
}

func (p *poll) reject(index int, field, format string, args ...any) {
	p.items = append(p.items, Item{Index: index, Err: fieldErrorf(field, format, args...)})
}

func (p *poll) message(index int, text []byte) {
	var m pollMessage
	if err := json.Unmarshal(text, &m, lenient); err != nil {
		p.reject(index, "", "not readable as a poll message: %s", why(err))
		return
	}
	if m.StatusCode != 0 && m.StatusCode != 200 {
		p.reject(index, "status_code", "the source says %d %s", m.StatusCode, shorten(m.Message))
		return
	}
	if m.Data == nil && m.Cameras == nil {
		p.reject(index, "data", "is missing, and so is cameras: a WebSocket message has the one, an HTTP reply the other")
		return
	}
	for _, devices := range []map[string]jsontext.Value{m.Data, m.Cameras} {
		for _, id := range slices.Sorted(maps.Keys(devices)) {
			var d pollDevice
			if !codec.ValidID(id) {
				p.reject(index, "data", "%q is no device id", shorten(id))
			} else if err := json.Unmarshal(devices[id], &d, lenient); err != nil {
				p.reject(index, id, "is not readable: %s", why(err))
			} else {
				p.device(index, id, d)
			}
		}
	}
}

// device adds the events of one device in order of time, and its status last:
// it is what is true now.
func (p *poll) device(index int, id string, d pollDevice) {
	first := len(p.items)
	for _, code := range slices.Sorted(maps.Keys(d.Event)) {
		p.event(index, id, code, d.Event[code])
	}
	slices.SortStableFunc(p.items[first:], func(a, b Item) int {
		return cmp.Compare(a.Event.GetOccurTime().AsTime().UnixNano(), b.Event.GetOccurTime().AsTime().UnixNano())
	})
	for _, form := range [...]struct {
		field string
		value jsontext.Value
		base  int
	}{
		{"status", d.Status, 10}, {"status64", d.Status64, 10}, {"status_hex", d.StatusHex, 16}, {"status_hex64", d.StatusHex64, 16},
	} {
		if len(form.value) == 0 || form.value.Kind() == 'n' {
			continue
		}
		bits, ok := statusBits(form.value, form.base)
		if !ok {
			p.reject(index, id+"."+form.field, "%s is no bit mask", shorten(string(form.value)))
			continue
		}
		status := &eventv1.Status{Bits: bits}
		if p.bridges[id] {
			status.Kind = eventv1.Status_BRIDGE
		}
		ev := &eventv1.DeviceEvent{AccountId: p.account, DeviceId: id, Kind: &eventv1.DeviceEvent_Status{Status: status}}
		// A status is the source's word for now and has no time of its own.
		setReceived(ev, p.received)
		p.items = append(p.items, Item{Index: index, Event: ev})
		return
	}
}

// statusBits reads any of the four forms of a status: the lower 32 bits of the
// 64 repeat the mask of the short forms. Like the provider's ids it may be
// printed as a negative number.
func statusBits(value jsontext.Value, base int) (uint32, bool) {
	text := unquote(value)
	if base == 16 {
		text = strings.TrimPrefix(strings.ToLower(text), "0x")
	}
	if n, err := strconv.ParseUint(text, base, 64); err == nil {
		return uint32(n), true
	}
	if n, err := strconv.ParseInt(text, base, 64); err == nil {
		return uint32(n), true
	}
	return 0, false
}

func (p *poll) event(index int, id, code string, value jsontext.Value) {
	if !codec.ValidID(code) {
		p.reject(index, id+".event", "%q is no event code", shorten(code))
		return
	}
	var fields map[string]jsontext.Value
	if err := json.Unmarshal(value, &fields, lenient); err != nil {
		p.reject(index, id+".event."+code, "is no JSON object")
		return
	}
	ev := &eventv1.DeviceEvent{AccountId: p.account, DeviceId: id, Code: code}
	at, readable := pollTime(fields["timestamp"])
	if readable {
		ev.OccurTime = codec.Timestamp(at)
		ev.EventId = eventID(code, at, pollID(fields["eventid"]))
	} else {
		setReceived(ev, p.received)
	}
	meaning := pollCodes[code]
	switch {
	case meaning.phase != eventv1.Motion_NONE:
		ev.Kind = &eventv1.DeviceEvent_Motion{Motion: &eventv1.Motion{
			Phase:    meaning.phase,
			SpanId:   pollID(fields[meaning.span]),
			RegionId: pollID(fields[meaning.region]),
		}}
	case meaning.heartbeat:
		ev.Kind = &eventv1.DeviceEvent_Heartbeat{Heartbeat: &eventv1.Heartbeat{}}
	}
	p.items = append(p.items, Item{Index: index, Event: ev, Fold: meaning.fold})
}

// eventID names an event by what makes it one: the same code of a device at
// the same instant is the same event, delivered while a span is open and again
// when it is closed, or read from both forms of the stream.
func eventID(code string, unixMilli int64, id string) string {
	name := code + "-" + strconv.FormatInt(unixMilli, 10)
	if id != "" {
		name += "-" + id
	}
	return name
}

// pollID reads an id. Ids are uint32, but printed as signed numbers: -12 is
// 4294967284. Whatever else stands there is no id.
func pollID(value jsontext.Value) string {
	if n, err := strconv.ParseInt(unquote(value), 10, 64); err == nil {
		return strconv.FormatUint(uint64(uint32(n)), 10)
	}
	return ""
}

// pollTime reads YYYYMMDDhhmmss.xxx in UTC, or a number of milliseconds since
// 1970.
func pollTime(value jsontext.Value) (unixMilli int64, ok bool) {
	text := unquote(value)
	if t, err := time.Parse("20060102150405.999", text); err == nil && len(text) >= len("20060102150405") {
		return t.UnixMilli(), true
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if _, ok := codec.UnixMilli(codec.Timestamp(ms)); err != nil || !ok {
		return 0, false
	}
	return ms, true
}

// unquote is the text of a string, or the digits of a number.
func unquote(value jsontext.Value) string {
	if value.Kind() != '"' {
		return string(value)
	}
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return ""
	}
	return string(text)
}

// Package feeds reads what sources send, each in its own form, as device
// events. One file holds one source: its table of what means what, and the
// little code the table needs. Adding a source is one such file, a line in
// sources and its samples in testdata.
//
// It keeps nothing between messages and does no I/O: what the last status of a
// device was, and whether an event is worth sending, is said elsewhere.
//
// Invariant: reading never fails on what it does not know. A message gives as
// many items as can be read, and an error for each that cannot.
package feeds

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// Message is one request to a feed.
type Message struct {
	// MediaType is the content type without parameters, in lower case; empty
	// when there is none.
	MediaType string
	Query     url.Values
	Body      []byte
	// Received is the archiver's clock.
	Received time.Time
}

// Item is one event of a message, or why it is none.
type Item struct {
	// Index is the item's place in the message, from 0: a line, an element. One
	// such item may hold several events, or none.
	Index int
	// Event is valid (codec.ValidateEvent) unless Err says otherwise.
	Event *eventv1.DeviceEvent
	// Fold is what the event changes of the last status known of the device;
	// its zero value changes nothing. The event has no kind then.
	Fold Fold
	Err  *codec.FieldError
}

// Fold is an event code's effect on the bits of a status (rule S2).
type Fold struct {
	Set, Clear uint32
	// Alone is the state it says where no status is known; UNKNOWN: none.
	Alone eventv1.Status_State
}

// Source is one kind of feed.
type Source struct {
	Name string
	// MediaTypes it reads; one of them may be "", for no body.
	MediaTypes []string
	// OwnClock says that its devices set their own clocks: a time far from the
	// receipt is not believed (rule T2).
	OwnClock bool
	parse    func(m Message) ([]Item, error)
}

// Events is the source that speaks our own form (contract: Ingest).
var Events = Source{
	Name:       "events",
	MediaTypes: []string{ndjson, jsonText, cloudEvent, cloudEvents},
	parse:      parseEvents,
}

// sources are the feeds by name.
var sources = func() map[string]Source {
	m := make(map[string]Source)
	for _, s := range []Source{eenPoll, motionDaemon} {
		m[s.Name] = s
	}
	return m
}()

// Lookup finds a feed by its name in the path.
func Lookup(name string) (Source, bool) {
	s, ok := sources[name]
	return s, ok
}

// Names lists the feeds.
func Names() []string { return slices.Sorted(maps.Keys(sources)) }

// farOff is how far a device's own clock may be from the receipt (rule T2).
const farOff = 60 * time.Second

// Parse reads a message. An error is a *codec.FieldError about the message as
// a whole, such as a missing account.
func (s Source) Parse(m Message) ([]Item, error) {
	items, err := s.parse(m)
	if err != nil {
		return nil, err
	}
	for i := range items {
		if items[i].Err != nil {
			continue
		}
		ev := items[i].Event
		if s.OwnClock {
			ms, ok := codec.UnixMilli(ev.OccurTime)
			if off := m.Received.Sub(time.UnixMilli(ms)); !ok || off > farOff || off < -farOff {
				setReceived(ev, m.Received)
			}
		}
		if err := codec.ValidateEvent(ev); err != nil {
			items[i].Event, items[i].Err = nil, asField(err)
		}
	}
	return items, nil
}

// setReceived puts the time of receipt in place of a time that is not there or
// not believed, and marks that (rule T2).
func setReceived(ev *eventv1.DeviceEvent, received time.Time) {
	ev.OccurTime = codec.Timestamp(received.UnixMilli())
	ev.TimeCorrected = true
}

// parameter is a query parameter that names an id and must be there.
func parameter(q url.Values, name string) (string, error) {
	id := q.Get(name)
	switch {
	case id == "":
		return "", fieldErrorf(name, "is missing: add ?%s=… to the address", name)
	case !codec.ValidID(id):
		return "", fieldErrorf(name, "%q is no id: 1 to %d of A-Z a-z 0-9 . _ : - are allowed", shorten(id), codec.MaxID)
	}
	return id, nil
}

// asField makes sure that an error names a field, if an empty one.
func asField(err error) *codec.FieldError {
	var field *codec.FieldError
	if errors.As(err, &field) {
		return field
	}
	return &codec.FieldError{Reason: err.Error()}
}

func fieldErrorf(field, format string, args ...any) *codec.FieldError {
	return &codec.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// shorten keeps what a caller sent from filling an answer.
func shorten(s string) string {
	const most = 80
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

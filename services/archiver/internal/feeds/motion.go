package feeds

import (
	"net/url"
	"strconv"
	"time"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// motionDaemon is the Motion daemon (4.5): each of its hooks runs one curl.
// What it says is in the address or in a form:
//
//	account, device   whose camera, and which
//	event             the hook: start, motion, end, picture, lost, found
//	span              names the motion event; start and end must agree
//	time              when: %s of motion.conf (whole seconds), milliseconds, or RFC 3339
//	region            optional
//
// See deploy/examples/motion.
var motionDaemon = Source{
	Name:       "motion",
	MediaTypes: []string{"", form},
	OwnClock:   true,
	parse:      parseMotion,
}

const form = "application/x-www-form-urlencoded"

// motionHooks say what each hook means, by the short name of the recipe and by
// Motion's own.
var motionHooks = map[string]struct {
	phase eventv1.Motion_Phase
	state eventv1.Status_State
}{
	"start":              {phase: eventv1.Motion_START},
	"on_event_start":     {phase: eventv1.Motion_START},
	"motion":             {phase: eventv1.Motion_UPDATE},
	"on_motion_detected": {phase: eventv1.Motion_UPDATE},
	"end":                {phase: eventv1.Motion_END},
	"on_event_end":       {phase: eventv1.Motion_END},
	"picture":            {},
	"on_picture_save":    {},
	"lost":               {state: eventv1.Status_OFFLINE},
	"on_camera_lost":     {state: eventv1.Status_OFFLINE},
	"found":              {state: eventv1.Status_ONLINE},
	"on_camera_found":    {state: eventv1.Status_ONLINE},
}

func parseMotion(m Message) ([]Item, error) {
	q := m.Query
	if m.MediaType == form {
		body, err := url.ParseQuery(string(m.Body))
		if err != nil {
			return nil, fieldErrorf("", "not readable as a form: %v", err)
		}
		// The address wins: it is what the operator wrote last.
		for name, values := range q {
			body[name] = values
		}
		q = body
	}
	account, err := parameter(q, "account")
	if err != nil {
		return nil, err
	}
	device, err := parameter(q, "device")
	if err != nil {
		return nil, err
	}
	name := q.Get("event")
	hook, known := motionHooks[name]
	if !known {
		return nil, fieldErrorf("event", "%q is not known: start, motion, end, picture, lost or found", shorten(name))
	}
	ev := &eventv1.DeviceEvent{AccountId: account, DeviceId: device, Code: name}
	if at, ok := motionTime(q.Get("time"), m.Received); ok {
		ev.OccurTime = codec.Timestamp(at)
	}
	switch {
	case hook.phase != eventv1.Motion_NONE:
		ev.Kind = &eventv1.DeviceEvent_Motion{Motion: &eventv1.Motion{Phase: hook.phase, SpanId: q.Get("span"), RegionId: q.Get("region")}}
	case hook.state != eventv1.Status_UNKNOWN:
		ev.Kind = &eventv1.DeviceEvent_Status{Status: &eventv1.Status{State: hook.state}}
	}
	return []Item{{Event: ev}}, nil
}

// motionTime reads a hook's time. One in whole seconds means some instant of
// that second: the one closest to the receipt is taken, so that a camera lost
// and found within a second stays in that order. False: absent or unreadable,
// and then the receipt is the time (rule T2).
func motionTime(text string, received time.Time) (unixMilli int64, ok bool) {
	if ms, err := codec.ParseTime(text); err == nil {
		return ms, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false
	}
	// 1e11 s is the year 5138, 1e11 ms is 1973.
	if n > 1e11 || n < -1e11 {
		return n, true
	}
	start := n * 1000
	return min(max(start, received.UnixMilli()), start+999), true
}

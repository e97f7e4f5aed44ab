package codec

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
)

// AppendEventJSON is MarshalEventJSON onto dst. A timestamp that is no instant
// (see UnixMilli) is left out, and bytes that are no UTF-8 are replaced.
func AppendEventJSON(dst []byte, ev *eventv1.DeviceEvent) []byte {
	w := writer{dst: dst}
	w.open()
	w.text("eventId", ev.EventId)
	w.text("accountId", ev.AccountId)
	w.text("deviceId", ev.DeviceId)
	w.text("sourceId", ev.SourceId)
	w.text("sourceEpoch", ev.SourceEpoch)
	if ev.Sequence != 0 {
		w.text("sequence", strconv.FormatUint(ev.Sequence, 10))
	}
	w.time("occurTime", ev.OccurTime)
	w.time("receiveTime", ev.ReceiveTime)
	w.yes("spooled", ev.Spooled)
	w.yes("restated", ev.Restated)
	w.yes("timeCorrected", ev.TimeCorrected)
	w.text("code", ev.Code)
	switch {
	case ev.GetStatus() != nil:
		s := ev.GetStatus()
		w.name("status")
		w.open()
		if s.Bits != 0 {
			w.name("bits")
			w.dst = strconv.AppendUint(w.dst, uint64(s.Bits), 10)
		}
		if s.Kind != eventv1.Status_CAMERA {
			w.text("kind", s.Kind.String())
		}
		switch {
		case s.State != eventv1.Status_UNKNOWN:
			w.text("state", s.State.String())
		default:
			w.text("state", s.UnknownState)
		}
		w.close()
	case ev.GetMotion() != nil:
		m := ev.GetMotion()
		w.name("motion")
		w.open()
		w.text("phase", m.Phase.String())
		w.text("spanId", m.SpanId)
		w.text("regionId", m.RegionId)
		if m.Score != 0 {
			w.name("score")
			w.dst = jsontext.AppendFloat(w.dst, m.Score, 64)
		}
		w.close()
	case ev.GetHeartbeat() != nil:
		w.name("heartbeat")
		w.open()
		w.time("backBy", ev.GetHeartbeat().BackBy)
		w.close()
	}
	w.close()
	return w.dst
}

// writer appends the members of objects.
type writer struct{ dst []byte }

func (w *writer) open()  { w.dst = append(w.dst, '{') }
func (w *writer) close() { w.dst = append(w.dst, '}') }

func (w *writer) name(name string) {
	if w.dst[len(w.dst)-1] != '{' {
		w.dst = append(w.dst, ',')
	}
	w.dst = append(w.dst, '"')
	w.dst = append(w.dst, name...)
	w.dst = append(w.dst, '"', ':')
}

// text writes a string unless it is empty.
func (w *writer) text(name, value string) {
	if value == "" {
		return
	}
	w.name(name)
	// The only error is about invalid UTF-8, which is replaced nonetheless.
	w.dst, _ = jsontext.AppendQuote(w.dst, value)
}

func (w *writer) yes(name string, value bool) {
	if value {
		w.name(name)
		w.dst = append(w.dst, "true"...)
	}
}

func (w *writer) time(name string, ts *timestamppb.Timestamp) {
	ms, ok := UnixMilli(ts)
	if !ok {
		return
	}
	w.name(name)
	w.dst = append(w.dst, '"')
	w.dst = appendTime(w.dst, ms)
	w.dst = append(w.dst, '"')
}

package partition

import (
	"errors"
	"fmt"

	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
)

// The numbers of the conditions are the same in the record and in the machine;
// TestNumbersAgree holds them together.

// encoder writes states without allocating but for the bytes.
type encoder struct {
	state     statev1.DeviceState
	candidate statev1.DeviceState_Candidate
	last      statev1.DeviceState_Sample
}

// encode is the value of the state's record; nil, a tombstone, when nothing is
// known of the device.
func (e *encoder) encode(s *device.State, spans []device.Span) []byte {
	if *s == (device.State{}) && len(spans) == 0 {
		return nil
	}
	m := &e.state
	m.Confirmed = statev1.DeviceState_State(s.Confirmed)
	m.ConfirmedSinceUnixMs = s.Since
	m.PasswordNeeded = s.Password
	m.OutageSinceUnixMs = s.Outage
	m.Candidate, m.Last = nil, nil
	if c := &s.Candidate; c.Condition != device.Unknown {
		m.Candidate = &e.candidate
		m.Candidate.State = statev1.DeviceState_State(c.Condition)
		m.Candidate.SinceUnixMs = c.Since
		m.Candidate.StartedUnixMs = c.Started
		m.Candidate.DeadlineUnixMs = c.Deadline
		m.Candidate.ReceiveUnixMs = c.Receive
		m.Candidate.PasswordNeeded = c.Password
		m.Candidate.TimeCorrected = c.Corrected
		m.Candidate.Trace = m.Candidate.Trace[:0]
		if c.Trace != (device.Trace{}) {
			m.Candidate.Trace = append(m.Candidate.Trace, c.Trace[:]...)
		}
	}
	if l := &s.Last; l.Condition != device.Unknown {
		m.Last = &e.last
		m.Last.State = statev1.DeviceState_State(l.Condition)
		m.Last.Run = l.Run
		m.Last.Sequence = l.Sequence
		m.Last.OccurUnixMs = l.Occur
		m.Last.ReceiveUnixMs = l.Receive
	}
	m.SpanHashes, m.SpanOccurUnixMs = m.SpanHashes[:0], m.SpanOccurUnixMs[:0]
	for _, span := range spans {
		m.SpanHashes = append(m.SpanHashes, span.Hash())
		m.SpanOccurUnixMs = append(m.SpanOccurUnixMs, span.Occur())
	}
	value, err := m.MarshalVT()
	if err != nil {
		panic(fmt.Sprintf("partition: encode a device's state: %v\n%+v", err, *s))
	}
	return value
}

// decode reads what encode wrote, and trusts none of it.
func decode(value []byte) (device.State, []device.Span, error) {
	var m statev1.DeviceState
	if err := m.UnmarshalVT(value); err != nil {
		return device.State{}, nil, fmt.Errorf("unreadable: %w", err)
	}
	var err error
	condition := func(v statev1.DeviceState_State) device.Condition {
		if v < 0 || v > statev1.DeviceState_OFF {
			err = fmt.Errorf("state %d: no such state", v)
			return device.Unknown
		}
		return device.Condition(v)
	}
	s := device.State{
		Confirmed: condition(m.Confirmed),
		Since:     m.ConfirmedSinceUnixMs,
		Password:  m.PasswordNeeded,
		Outage:    m.OutageSinceUnixMs,
	}
	if c := m.Candidate; c != nil {
		s.Candidate = device.Candidate{
			Condition: condition(c.State),
			Since:     c.SinceUnixMs,
			Started:   c.StartedUnixMs,
			Deadline:  c.DeadlineUnixMs,
			Receive:   c.ReceiveUnixMs,
			Password:  c.PasswordNeeded,
			Corrected: c.TimeCorrected,
		}
		if n := copy(s.Candidate.Trace[:], c.Trace); n != len(c.Trace) || n != 0 && n != len(s.Candidate.Trace) {
			return device.State{}, nil, fmt.Errorf("candidate: a trace of %d bytes", len(c.Trace))
		}
	}
	if l := m.Last; l != nil {
		s.Last = device.Sample{
			Condition: condition(l.State),
			Run:       l.Run,
			Sequence:  l.Sequence,
			Occur:     l.OccurUnixMs,
			Receive:   l.ReceiveUnixMs,
		}
	}
	if err != nil {
		return device.State{}, nil, err
	}
	if err := s.Check(); err != nil {
		return device.State{}, nil, err
	}
	if len(m.SpanHashes) > device.MaxSpans || len(m.SpanHashes) != len(m.SpanOccurUnixMs) {
		return device.State{}, nil, fmt.Errorf("spans: %d hashes and %d times, of at most %d",
			len(m.SpanHashes), len(m.SpanOccurUnixMs), device.MaxSpans)
	}
	spans := make([]device.Span, len(m.SpanHashes))
	for i, h := range m.SpanHashes {
		occur := m.SpanOccurUnixMs[i]
		if occur < 0 || occur > device.MaxTime || h >= 1<<48 {
			return device.State{}, nil, fmt.Errorf("span %d: hash %#x at %d ms is out of range", i, h, occur)
		}
		spans[i] = device.NewSpan(h, occur)
	}
	if s == (device.State{}) && len(spans) == 0 {
		return device.State{}, nil, errors.New("it says nothing: a device of which nothing is known has a tombstone")
	}
	return s, spans, nil
}

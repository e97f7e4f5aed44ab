package partition

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
)

// readTrace is the context that a record came with; none if it was not sampled,
// for then nobody wants to see what it led to.
func readTrace(rec *kgo.Record) device.Trace {
	var out device.Trace
	sc := codec.ParseTrace(kafka.Header(rec, kafka.HeaderTraceParent), "")
	if sc.IsSampled() {
		traceID, spanID := sc.TraceID(), sc.SpanID()
		copy(out[:], traceID[:])
		copy(out[len(traceID):], spanID[:])
	}
	return out
}

// spanContext is the opposite of readTrace.
func spanContext(t device.Trace) trace.SpanContext {
	var cfg trace.SpanContextConfig
	copy(cfg.TraceID[:], t[:])
	copy(cfg.SpanID[:], t[len(cfg.TraceID):])
	cfg.TraceFlags = trace.FlagsSampled
	cfg.Remote = true
	return trace.NewSpanContext(cfg)
}

// openSpan is a span that ends when its notification is committed; at is zero
// for "then".
type openSpan struct {
	trace.Span
	at time.Time
}

func (s openSpan) end() {
	if s.at.IsZero() {
		s.End()
		return
	}
	s.End(trace.WithTimestamp(s.at))
}

// traceparent begins the span of a notification and is the context that it
// takes along. What was held has a trace of its own, which begins with the hold
// from its true start to its true end and links to that of the ETag; all others
// go on with the ETag's. Nobody waits 300 s for a trace, but the two belong
// together. "" is for what is not traced.
func (p *Partition) traceparent(n *Notification) string {
	etag := spanContext(n.Trace)
	opts := []trace.SpanStartOption{trace.WithAttributes(
		attribute.String("tocsin.notification.id", n.ID()),
		attribute.String("tocsin.notification.type", n.Type.String()),
		attribute.String("tocsin.notification.stage", n.Stage.String()),
		attribute.String("tocsin.account.id", n.Account),
		attribute.String("tocsin.device.id", n.Device),
		attribute.String("tocsin.etag.occur_time", codec.FormatTime(n.Since)),
	)}
	ctx := context.Background()
	var open openSpan
	name := "decide " + n.Stage.String()
	switch {
	case n.Stage == device.Due && n.Type != device.Alert:
		name = "hold"
		opts = append(opts, trace.WithNewRoot(), trace.WithTimestamp(time.UnixMilli(n.Started)))
		if etag.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: etag}))
		}
		open.at = time.UnixMilli(n.Decide)
	case etag.IsValid():
		ctx = trace.ContextWithRemoteSpanContext(ctx, etag)
	case n.Type != device.Alert:
		return ""
	}
	_, open.Span = p.opts.Tracer.Start(ctx, name, opts...)
	p.spans = append(p.spans, open)
	sc := open.SpanContext()
	if !sc.IsValid() {
		sc = etag // nothing is recorded here; the next service may still
	}
	parent, _ := codec.FormatTrace(sc)
	return parent
}

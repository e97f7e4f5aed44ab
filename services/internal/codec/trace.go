package codec

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// FormatTrace writes a span's context as the W3C headers traceparent and
// tracestate; both are empty when the context is not valid.
func FormatTrace(sc trace.SpanContext) (parent, state string) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
	return carrier["traceparent"], carrier["tracestate"]
}

// ParseTrace reads the W3C headers traceparent and tracestate of another
// process. What cannot be read gives a context that is not valid, never an
// error: a broken trace must stop no event.
func ParseTrace(parent, state string) trace.SpanContext {
	if parent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{"traceparent": parent, "tracestate": state}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

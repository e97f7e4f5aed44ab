package mailer

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
)

// Attributes of the span of an attempt. OpenTelemetry has no names for SMTP;
// where it has one for the network it is taken from there.
const (
	attrMailID        = attribute.Key("tocsin.mail.id")
	attrAccountID     = attribute.Key("tocsin.account.id")
	attrAttempt       = attribute.Key("tocsin.mail.attempt")
	attrType          = attribute.Key("tocsin.notification.type")
	attrNotifications = attribute.Key("tocsin.notification.ids")
	// attrOccurTime is when the ETag occurred, RFC 3339 with milliseconds.
	attrOccurTime = attribute.Key("tocsin.etag.occur_time")
	// Seconds from the occur time to the decision (the mail's date), with the
	// deliberate hold and without.
	attrAlertDelay     = attribute.Key("tocsin.alert_delay")
	attrAlertDelayLess = attribute.Key("tocsin.alert_delay_without_hold")
	attrOutcome        = attribute.Key("tocsin.mail.outcome")
	attrReplyCode      = attribute.Key("smtp.reply.code")
	attrEnhancedCode   = attribute.Key("smtp.reply.enhanced_code")
)

// parent is the trace of an item's notification.
func parent(it *outboxv1.Mail_Item) context.Context {
	return propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": it.GetTraceparent()})
}

// startSpan begins the span of an attempt, in the trace of the mail's first
// item and linked to the others'.
func (m *Mailer) startSpan(ml *outboxv1.Mail) (context.Context, trace.Span) {
	attrs := []attribute.KeyValue{
		semconv.ServerAddress(m.cfg.Host), semconv.ServerPort(m.cfg.port()), semconv.NetworkProtocolName("smtp"),
		attrMailID.String(ml.GetMailId()), attrAccountID.String(ml.GetAccountId()), attrAttempt.Int64(int64(ml.GetAttempt())),
	}
	var links []trace.Link
	var ids []string
	for i, it := range ml.GetItems() {
		ids = append(ids, it.GetNotification().GetNotificationId())
		if sc := trace.SpanContextFromContext(parent(it)); i > 0 && sc.IsValid() {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	attrs = append(attrs, attrNotifications.StringSlice(ids))
	var first *outboxv1.Mail_Item
	if len(ml.GetItems()) > 0 {
		first = ml.GetItems()[0]
		attrs = append(attrs, delays(first.GetNotification(), ml.GetDate().AsTime())...)
	}
	return m.tracer.Start(parent(first), "smtp send", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...), trace.WithLinks(links...))
}

func delays(n *notificationv1.Notification, decided time.Time) []attribute.KeyValue {
	occurred := n.GetSinceTime().AsTime()
	delay := decided.Sub(occurred)
	return []attribute.KeyValue{
		attrType.String(n.GetType().String()),
		attrOccurTime.String(occurred.UTC().Format("2006-01-02T15:04:05.000Z07:00")),
		attrAlertDelay.Float64(delay.Seconds()),
		attrAlertDelayLess.Float64((delay - n.GetHold().AsDuration()).Seconds()),
	}
}

func (m *Mailer) endSpan(span trace.Span, r *outboxv1.Result) {
	span.SetAttributes(attrOutcome.String(r.GetOutcome().String()))
	if r.GetReplyCode() != 0 {
		span.SetAttributes(attrReplyCode.Int64(int64(r.GetReplyCode())))
	}
	if r.GetEnhancedCode() != "" {
		span.SetAttributes(attrEnhancedCode.String(r.GetEnhancedCode()))
	}
	if r.GetOutcome() != outboxv1.Result_SENT {
		// The relay's words may have an address in them: they are in the ledger only.
		span.SetStatus(codes.Error, r.GetOutcome().String())
		span.SetAttributes(semconv.ErrorTypeKey.String(r.GetOutcome().String()))
	}
	span.End()
}

// traceID is that of the mail, which does not change from try to try; "" if
// its first item has none.
func traceID(ml *outboxv1.Mail) string {
	if len(ml.GetItems()) == 0 {
		return ""
	}
	sc := trace.SpanContextFromContext(parent(ml.GetItems()[0]))
	if !sc.HasTraceID() {
		return ""
	}
	return sc.TraceID().String()
}

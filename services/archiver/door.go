package archiver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tocsin/tocsin/services/archiver/internal/feeds"
	"github.com/tocsin/tocsin/services/archiver/internal/ingest"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// door joins what came over HTTP, the feeds that read it, and the intake.
type door struct {
	intake    *intake
	maxEvents int
}

var _ ingest.Intake = (*door)(nil)

// Feeds implements ingest.Intake.
func (d *door) Feeds() []string { return feeds.Names() }

// source is a feed by its name in the path; "" is our own form.
func source(feed string) (feeds.Source, bool) {
	if feed == "" {
		return feeds.Events, true
	}
	return feeds.Lookup(feed)
}

// MediaTypes implements ingest.Intake.
func (d *door) MediaTypes(feed string) []string {
	s, _ := source(feed)
	return s.MediaTypes
}

// Take implements ingest.Intake.
func (d *door) Take(ctx context.Context, r ingest.Request) (answer ingest.Answer, err error) {
	s, ok := source(r.Feed)
	if !ok {
		return answer, &codec.FieldError{Reason: fmt.Sprintf("there is no feed %q", r.Feed)}
	}
	items, err := s.Parse(feeds.Message{MediaType: r.MediaType, Query: r.Query, Body: r.Body, Received: r.Received})
	if err != nil {
		d.intake.metrics.rejected(reason(err))
		return answer, err
	}
	if len(items) > d.maxEvents {
		return answer, fmt.Errorf("%w: %d, the limit is %d a request", ingest.ErrTooMany, len(items), d.maxEvents)
	}
	for i := range items {
		item := &items[i]
		if item.Err == nil && !r.May(item.Event.AccountId) {
			item.Err = &codec.FieldError{Field: "accountId", Reason: fmt.Sprintf("this API key may not write for account %q", item.Event.AccountId)}
			answer.Forbidden++
		}
		if item.Err != nil {
			d.intake.metrics.rejected(reason(item.Err))
			answer.Rejected = append(answer.Rejected, ingest.Rejection{Index: item.Index, Field: item.Err.Field, Reason: item.Err.Reason})
		}
	}
	answer.Accepted, answer.Duplicate, err = d.intake.take(ctx, items)
	return answer, err
}

// reason is a rejection's word for the metric: one of few, whatever callers send.
func reason(err error) string {
	var field *codec.FieldError
	if !errors.As(err, &field) || field.Field == "" {
		return "unreadable"
	}
	name, _, _ := strings.Cut(field.Field, ".")
	switch name {
	case "accountId", "deviceId", "eventId", "occurTime", "receiveTime", "sequence",
		"status", "motion", "heartbeat", "account", "device", "event":
		return name
	}
	return "other"
}

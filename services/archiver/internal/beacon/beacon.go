// Package beacon says that an archiver lives: it is itself a device, of the
// account "operator" (rule L3). It owns the rhythm and the words; what silence
// means is the monitor's.
package beacon

import (
	"context"
	"time"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// Account is the reserved account of Tocsin's own parts.
const Account = "operator"

const (
	// every is the time between two heartbeats (rule L3).
	every = 10 * time.Second
	// back is when a planned stop is over, at the latest (rule L3).
	back = 5 * time.Minute
)

// Run sends a heartbeat of the device id at once and every 10 s, until ctx
// ends; then a last one that says by when it is back.
func Run(ctx context.Context, id string, send func(*eventv1.DeviceEvent)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		send(heartbeat(id, time.Now(), time.Time{}))
		select {
		case <-tick.C:
		case <-ctx.Done():
			now := time.Now()
			send(heartbeat(id, now, now.Add(back)))
			return
		}
	}
}

func heartbeat(id string, now, backBy time.Time) *eventv1.DeviceEvent {
	beat := &eventv1.Heartbeat{}
	if !backBy.IsZero() {
		beat.BackBy = codec.Timestamp(backBy.UnixMilli())
	}
	return &eventv1.DeviceEvent{
		AccountId: Account, DeviceId: id,
		OccurTime: codec.Timestamp(now.UnixMilli()),
		Kind:      &eventv1.DeviceEvent_Heartbeat{Heartbeat: beat},
	}
}

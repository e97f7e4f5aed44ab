package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// demoYAML are the settings of the demo's account.
//
//go:embed demo.yaml
var demoYAML []byte

const (
	demoAccount = "demo"
	demoBridge  = "100b0001"
	demoDoor    = "100a0001"
	demoYard    = "100a0002"
	demoGarage  = "100a0003"
	demoPier    = "100a0004"
	demoCrane   = "100a0005"
	demoBoats   = "100a0006"
	// demoAgain is the wait before a request that failed is made again.
	demoAgain = 500 * time.Millisecond
)

var demoCameras = []string{demoDoor, demoYard, demoGarage, demoPier, demoCrane, demoBoats}

// demoRegions are where motion is seen; a camera that is not named has the
// whole frame.
var demoRegions = map[string]string{demoDoor: "door", demoYard: "gate", demoBoats: "inside"}

// The provider's bit mask (rule S1): bit 17 on, 20 registered, 18 streaming.
const (
	bitsOnline          = 1441847
	bitsBridgeOnline    = 1179649
	bitsOffline         = 1179648
	bitsInternetOffline = 131072
)

// demoStep is one event of the simulated fleet, after its start.
type demoStep struct {
	at     time.Duration
	device string
	bits   uint32 // a status, unless it is motion
	motion eventv1.Motion_Phase
}

// demoOpening shows within a minute what Tocsin does with the holds of
// demo.yaml (20 s down, 10 s up): a motion mail at once, an outage told after
// its hold, a blip that is told to nobody, a recovery.
func demoOpening() []demoStep {
	steps := []demoStep{{device: demoBridge, bits: bitsBridgeOnline}}
	for _, c := range demoCameras {
		steps = append(steps, demoStep{device: c, bits: bitsOnline})
	}
	const s = time.Second
	return append(steps,
		demoStep{at: 2 * s, device: demoDoor, motion: eventv1.Motion_START},
		demoStep{at: 3 * s, device: demoGarage, bits: bitsOffline},
		demoStep{at: 4 * s, device: demoYard, bits: bitsOffline},
		demoStep{at: 6 * s, device: demoDoor, motion: eventv1.Motion_END},
		demoStep{at: 12 * s, device: demoYard, bits: bitsOnline},
		demoStep{at: 15 * s, device: demoBoats, motion: eventv1.Motion_START},
		demoStep{at: 18 * s, device: demoBoats, motion: eventv1.Motion_END},
		demoStep{at: 30 * s, device: demoGarage, bits: bitsOnline},
	)
}

// demoRound is two minutes of a quiet neighbourhood; rounds follow each other.
func demoRound(rng *rand.Rand) []demoStep {
	const s = time.Second
	camera := func() string { return demoCameras[rng.IntN(len(demoCameras))] }
	var steps []demoStep
	for at := 5 * s; at < 110*s; at += time.Duration(15+rng.IntN(20)) * s {
		c := camera()
		steps = append(steps,
			demoStep{at: at, device: c, motion: eventv1.Motion_START},
			demoStep{at: at + 4*s, device: c, motion: eventv1.Motion_END})
	}
	blip, out := camera(), camera()
	steps = append(steps,
		demoStep{at: 10 * s, device: blip, bits: bitsOffline},
		demoStep{at: 22 * s, device: blip, bits: bitsOnline},
		demoStep{at: 40 * s, device: out, bits: bitsInternetOffline},
		demoStep{at: 85 * s, device: out, bits: bitsOnline})
	return steps
}

const demoRoundLength = 2 * time.Minute

// demo sets the account up, once, and plays the fleet until ctx ends.
func (c *upCmd) demo(ctx context.Context) error {
	d := &demo{
		console:  "http://" + c.Console.Listen.String(),
		archiver: "http://" + c.Archiver.Listen.String(),
		epoch:    strconv.FormatInt(time.Now().Unix(), 10),
		sequence: map[string]uint64{},
		spans:    map[string]string{},
	}
	err := d.setUp(ctx)
	if err == nil {
		err = d.play(ctx, demoOpening(), time.Minute)
	}
	rng := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	for err == nil {
		err = d.play(ctx, demoRound(rng), demoRoundLength)
	}
	if errors.Is(err, context.Canceled) { // the process is being stopped
		return nil
	}
	return fmt.Errorf("demo: %w", err)
}

// demo is the simulated fleet. It speaks to the services as anybody does.
type demo struct {
	console, archiver string
	epoch             string
	sequence          map[string]uint64 // by device
	spans             map[string]string // by device, while motion lasts
	span              int
}

// setUp applies demo.yaml unless the account is there: a reader's own changes stay.
func (d *demo) setUp(ctx context.Context) error {
	status, _, err := d.request(ctx, http.MethodGet, d.console+"/v1/settings?account="+demoAccount, "", nil)
	if err != nil || status == http.StatusOK {
		return err
	}
	status, body, err := d.request(ctx, http.MethodPut, d.console+"/v1/settings", "application/yaml", demoYAML)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the settings were refused: %s", body)
	}
	return err
}

// play sends steps, whose times count from now, and returns after length.
func (d *demo) play(ctx context.Context, steps []demoStep, length time.Duration) error {
	begun := time.Now()
	// Steps of a round overlap: each runs in its own order of time.
	for at := time.Duration(0); ; at += demoAgain {
		for _, step := range steps {
			if step.at >= at && step.at < at+demoAgain {
				if err := d.send(ctx, step); err != nil {
					return err
				}
			}
		}
		if at >= length {
			return nil
		}
		if err := sleep(ctx, time.Until(begun.Add(at+demoAgain))); err != nil {
			return err
		}
	}
}

func (d *demo) send(ctx context.Context, step demoStep) error {
	d.sequence[step.device]++
	ev := &eventv1.DeviceEvent{
		EventId:   fmt.Sprintf("%s-%s-%d", step.device, d.epoch, d.sequence[step.device]),
		AccountId: demoAccount, DeviceId: step.device,
		SourceId: "demo", SourceEpoch: d.epoch, Sequence: d.sequence[step.device],
		OccurTime: timestamppb.Now(),
	}
	switch {
	case step.motion == eventv1.Motion_NONE:
		status := &eventv1.Status{Bits: step.bits}
		if step.device == demoBridge {
			status.Kind = eventv1.Status_BRIDGE
		}
		ev.Kind = &eventv1.DeviceEvent_Status{Status: status}
	default:
		if step.motion == eventv1.Motion_START {
			d.span++
			d.spans[step.device] = fmt.Sprintf("%s-%d", d.epoch, d.span)
		}
		ev.Kind = &eventv1.DeviceEvent_Motion{Motion: &eventv1.Motion{
			Phase: step.motion, SpanId: d.spans[step.device], RegionId: demoRegions[step.device],
		}}
	}
	status, body, err := d.request(ctx, http.MethodPost, d.archiver+"/v1/events", "application/json", codec.MarshalEventJSON(ev))
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("an event was refused: %s", body)
	}
	return err
}

// request asks again while the service is starting or Kafka is away.
func (d *demo) request(ctx context.Context, method, url, contentType string, body []byte) (status int, answer []byte, err error) {
	for {
		req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
		if err != nil {
			return 0, nil, fmt.Errorf("make a request: %w", err)
		}
		if contentType != "" {
			req.Header.Set("Content-Type", contentType)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			answer, err = io.ReadAll(resp.Body)
			err = errors.Join(err, resp.Body.Close())
			if err == nil && resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusTooManyRequests {
				return resp.StatusCode, answer, nil
			}
		}
		if err := sleep(ctx, demoAgain); err != nil {
			return 0, nil, err
		}
	}
}

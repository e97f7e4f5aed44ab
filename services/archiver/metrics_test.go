package archiver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tocsin/tocsin/services/internal/kafkatest"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

// noGauges makes all metrics but gauges.
type noGauges struct{ metricnoop.MeterProvider }

func (noGauges) Meter(string, ...metric.MeterOption) metric.Meter { return noGaugesMeter{} }

type noGaugesMeter struct{ metricnoop.Meter }

func (noGaugesMeter) Int64ObservableGauge(string, ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	return nil, errors.New("no gauges")
}

// An archiver that cannot be made leaves nothing behind: what still ran in the
// bubble would fail the test.
func TestNewLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := kafkatest.Virtual(t, 1).Env(t)
		env.Meter = noGauges{}
		if s, err := New(defaults(t), env); err == nil || s != nil {
			t.Errorf("service %v, error %v; want an error alone", s, err)
		}
	})
}

// Proves what is counted: events by kind, rejections by field, and the delay
// of live events only, from a time that can be believed.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		b := start(t, defaults(t), func(env *lifecycle.Env) { env.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)) })
		time.Sleep(time.Minute)
		ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339Nano) }
		b.post("/v1/events", lines, status("e1", "d", ago(2*time.Second), "ONLINE")+"\n"+
			status("e1", "d", ago(2*time.Second), "ONLINE")+"\n"+
			status("e2", "d", ago(30*24*time.Hour), "ONLINE")+"\n"+
			status("e3", "d", ago(-time.Hour), "OFFLINE")+"\n"+
			`{"accountId":"a","deviceId":"d","occurTime":"1999-01-01T00:00:00Z","receiveTime":"1999-01-01T00:00:00Z","restated":true,"status":{"state":"ONLINE"}}`+"\n"+
			`{"accountId":"a","deviceId":"d","code":"X"}`+"\n"+
			`{"accountId":"a","deviceId":"d","secret-of-a-caller":1}`+"\n"+
			`{"accountId":"a","deviceId":"no good","heartbeat":{}}`)
		var data metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &data); err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		name := func(metric string, set attribute.Set) string {
			for _, a := range set.ToSlice() {
				metric += " " + string(a.Key) + "=" + a.Value.String()
			}
			return metric
		}
		for _, scope := range data.ScopeMetrics {
			for _, m := range scope.Metrics {
				switch points := m.Data.(type) {
				case metricdata.Sum[int64]:
					for _, p := range points.DataPoints {
						got[name(m.Name, p.Attributes)] = float64(p.Value)
					}
				case metricdata.Gauge[int64]:
					for _, p := range points.DataPoints {
						got[name(m.Name, p.Attributes)] = float64(p.Value)
					}
				case metricdata.Histogram[float64]:
					for _, p := range points.DataPoints {
						got[name(m.Name, p.Attributes)+" count"] = float64(p.Count)
						got[name(m.Name, p.Attributes)+" sum"] = p.Sum
					}
				}
			}
		}
		// 2 s of e1; e2 and e3 count from their receipt; the code has no time.
		if sum := got["tocsin_stage_delay_seconds stage=archiver sum"]; sum < 2 || sum > 2.1 {
			t.Errorf("the delays sum up to %v", sum)
		}
		delete(got, "tocsin_stage_delay_seconds stage=archiver sum")
		if diff := cmp.Diff(map[string]float64{
			"tocsin_archiver_events_total kind=status":        3,
			"tocsin_archiver_events_total kind=restated":      1,
			"tocsin_archiver_events_total kind=other":         1,
			"tocsin_archiver_duplicates_total":                1,
			"tocsin_archiver_rejected_total reason=deviceId":  1,
			"tocsin_archiver_rejected_total reason=other":     1,
			"tocsin_archiver_known_devices":                   1,
			"tocsin_archiver_buffered_events":                 0,
			"tocsin_stage_delay_seconds stage=archiver count": 4,
		}, got); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}

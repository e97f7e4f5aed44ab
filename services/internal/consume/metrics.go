package consume

import (
	"context"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// metrics are the runtime's; series grow with partitions only.
type metrics struct {
	deadLetters  metric.Int64Counter
	badSettings  metric.Int64Counter
	transactions metric.Int64Counter

	mu   sync.Mutex
	lags map[string]map[int32]int64 // by member
}

func newMetrics(mp metric.MeterProvider, logTopic string) (*metrics, error) {
	meter := mp.Meter("github.com/tocsin/tocsin/services/internal/consume")
	m := &metrics{lags: map[string]map[int32]int64{}}
	var err error
	if m.deadLetters, err = meter.Int64Counter("tocsin_dead_letters_total",
		metric.WithDescription("Records that could not be handled and went to the dead letters, by their topic and the reason.")); err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	if m.badSettings, err = meter.Int64Counter("tocsin_bad_settings_total",
		metric.WithDescription("Settings records that could not be read; the former setting stays.")); err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	if m.transactions, err = meter.Int64Counter("tocsin_transactions_total",
		metric.WithDescription("Transactions of the partition runtime, by end.")); err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	_, err = meter.Int64ObservableGauge("tocsin_consumer_lag",
		metric.WithDescription("Records of the log that were not handled yet, by partition owned here."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, parts := range m.lags {
				for p, lag := range parts {
					o.Observe(lag, metric.WithAttributes(attribute.String("topic", logTopic), attribute.Int("partition", int(p))))
				}
			}
			return nil
		}))
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) deadLetter(topic string, why Reason) {
	m.deadLetters.Add(context.Background(), 1, metric.WithAttributes(attribute.String("topic", topic), attribute.String("reason", string(why))))
}

func (m *metrics) badSetting(topic string) {
	m.badSettings.Add(context.Background(), 1, metric.WithAttributes(attribute.String("topic", topic)))
}

func (m *metrics) transaction(ctx context.Context, committed bool) {
	end := "aborted"
	if committed {
		end = "committed"
	}
	m.transactions.Add(ctx, 1, metric.WithAttributes(attribute.String("end", end)))
}

func (m *metrics) lag(member string, lags map[int32]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lags[member] = lags
}

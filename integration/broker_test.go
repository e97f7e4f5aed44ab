package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/integration/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// A broker takes and gives batches of every compression that clients use, and
// packs them anew where the topic says so: the natives of our image are complete.
func TestBrokerCompressions(t *testing.T) {
	t.Parallel()
	harness.OnEachBroker(t, func(t *testing.T, b *harness.Broker) {
		codecs := map[string]kgo.CompressionCodec{
			"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
		}
		adm := kadm.NewClient(b.Client())
		for stored := range codecs {
			topic := b.Topic("packed." + stored)
			if _, err := adm.CreateTopic(t.Context(), 1, 1, map[string]*string{"compression.type": &stored}, topic); err != nil {
				t.Fatalf("create %s: %v", topic, err)
			}
			for sent, codec := range codecs {
				cl := b.Client(kgo.ProducerBatchCompression(codec))
				value := fmt.Sprintf("sent as %s, stored as %s %0200d", sent, stored, 0)
				if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
					t.Errorf("%.40s: %v", value, err)
				}
			}
			if got := len(b.Records(topic)); got != len(codecs) {
				t.Errorf("%s holds %d records, want %d", topic, got, len(codecs))
			}
		}
	})
}

package integration

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tocsin/tocsin/integration/harness"
)

// motionSettings has the one camera that the Motion daemon of this test watches.
const motionSettings = `
accounts:
  - id: home
    name: Home
    timezone: Europe/Berlin
    active: true
    systemNotifications: true
    users:
      - {id: ann, name: Ann, email: ann@home.test, enabled: true, admin: true, levels: [LOW, HIGH, SYSTEM]}
    devices:
      - {id: porch, name: Porch, kind: CAMERA}
`

// The real Motion daemon on a real video stream, with the recipe that we give
// people (deploy/examples/motion): something moves, the stream breaks off, it
// comes back. Exactly three mails come of its hundreds of hook calls: the
// motion at once, Offline and Online after their holds.
func TestMotionDaemon(t *testing.T) {
	t.Parallel()
	daemon, err := exec.LookPath("motion")
	if err != nil {
		t.Skip("the Motion daemon is not installed (Debian: apt-get install motion)")
	}
	const offline, online = 3 * time.Second, 2 * time.Second
	s := harness.StartSuite(t, harness.StartKfake(t), harness.Options{
		Settings: motionSettings,
		Args:     map[string][]string{"monitor": {"--hold.offline", offline.String(), "--hold.online", online.String()}},
	})
	camera := harness.StartCamera(t)
	motion := harness.NewProcess(t, "motion", daemon, "-n", "-c", motionConf(t, s.Ingest, camera.URL))
	motion.Start()
	harness.Eventually(t, patience, "Motion watches the camera", func() error {
		if !camera.Watched() {
			return fmt.Errorf("nobody asked for the stream")
		}
		return nil
	})
	// It takes the first seconds for what the scene always looks like.
	harness.Pass(6 * time.Second)
	s.Sink.Exactly(0)

	camera.Move(true)
	moved := time.Now()
	mail := s.Sink.Await(1, patience)[0]
	wantMail(t, mail, "[Motion] Porch", "")
	t.Logf("motion: mailed %v after something moved", mail.At.Sub(moved).Round(time.Millisecond))
	harness.Pass(4 * time.Second)
	camera.Move(false)
	harness.Pass(8 * time.Second)
	s.Sink.Exactly(1)

	// Motion itself waits half a minute before it gives a camera up.
	camera.Unplug()
	mail = s.Sink.Await(2, 2*patience)[1]
	wantMail(t, mail, "[Offline] Porch", "")
	camera.Plug()
	mail = s.Sink.Await(3, patience)[2]
	wantMail(t, mail, "[Online] Porch", "")
	harness.Pass(6 * time.Second)
	s.Sink.Exactly(3)

	if got, want := stages(t, s.Broker, "porch"), []string{
		"ALERT DUE", "OFFLINE PENDING", "OFFLINE DUE", "ONLINE PENDING", "ONLINE DUE",
	}; !slices.Equal(got, want) {
		t.Errorf("the camera's notifications are %v, want %v", got, want)
	}
	hooks := make(map[string]int)
	for _, rec := range s.Broker.Records(s.Broker.Topic("etags")) {
		if len(rec.Value) > 0 {
			hooks["in all"]++
		}
	}
	t.Logf("ETags of the daemon's hooks: %v", hooks)
}

// motionConf is the recipe's motion.conf, with the addresses of this test in
// place of those that a person fills in.
func motionConf(t *testing.T, ingest, stream string) string {
	t.Helper()
	recipe, err := os.ReadFile(filepath.Join(harness.Root(), "deploy", "examples", "motion", "motion.conf"))
	if err != nil {
		t.Fatal(err)
	}
	base, err := url.Parse(ingest)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(recipe), "127.0.0.1:7101", base.Host)
	set := map[string]string{
		"daemon": "off", "netcam_url": stream, "target_dir": t.TempDir(), "width": "320", "height": "240", "framerate": "10",
		"webcontrol_port": "0", "stream_port": "0", "movie_output": "off", "picture_output": "first", "event_gap": "5", "log_level": "5",
	}
	var conf strings.Builder
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, ours := set[name]; !ours {
			conf.WriteString(line)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		fmt.Fprintf(&conf, "\n%s %s", name, set[name])
	}
	conf.WriteString("\n")
	file := filepath.Join(t.TempDir(), "motion.conf")
	if err := os.WriteFile(file, []byte(conf.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

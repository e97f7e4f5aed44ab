package harness

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Camera is a network camera: an MJPEG stream over HTTP on loopback, 320x240
// at ten frames a second, as Motion's netcam_url takes it. It shows an empty wall,
// or a block that moves across it. It can be unplugged and plugged in again at
// the same address.
type Camera struct {
	URL string

	t       testing.TB
	address string
	moving  atomic.Bool
	watched atomic.Int64

	mu     sync.Mutex
	server *http.Server // nil while unplugged
	served chan struct{}
}

// StartCamera starts a camera that shows an empty wall.
func StartCamera(t testing.TB) *Camera {
	t.Helper()
	address := FreeAddress(t)
	c := &Camera{URL: "http://" + address + "/stream", t: t, address: address}
	c.Plug()
	t.Cleanup(c.Unplug)
	return c
}

// Move shows the moving block, or the wall alone.
func (c *Camera) Move(on bool) { c.moving.Store(on) }

// Watched says whether somebody reads the stream now.
func (c *Camera) Watched() bool { return c.watched.Load() > 0 }

// Plug makes the camera answer.
func (c *Camera) Plug() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil {
		return
	}
	ln := listen(c.t, c.address)
	server, served := &http.Server{Handler: http.HandlerFunc(c.stream)}, make(chan struct{})
	c.server, c.served = server, served
	go func() {
		defer close(served)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			c.t.Errorf("camera: %v", err)
		}
	}()
}

// Unplug breaks every stream and refuses new ones.
func (c *Camera) Unplug() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return
	}
	c.server.Close()
	<-c.served
	c.server = nil
}

const boundary = "frame"

// stream writes parts with a Content-Length each, which Motion insists on.
func (c *Camera) stream(w http.ResponseWriter, r *http.Request) {
	c.watched.Add(1)
	defer c.watched.Add(-1)
	w.Header().Set("Content-Type", "multipart/x-mixed-replace; boundary="+boundary)
	frames := time.NewTicker(100 * time.Millisecond)
	defer frames.Stop()
	for step := 0; ; step++ {
		frame := picture(c.moving.Load(), step)
		if _, err := fmt.Fprintf(w, "--%s\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%s\r\n", boundary, len(frame), frame); err != nil {
			return // unplugged, or Motion went away
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-frames.C:
		}
	}
}

// picture is a grey wall, and a white block before it whose place depends on step.
func picture(block bool, step int) []byte {
	img := image.NewRGBA(image.Rect(0, 0, 320, 240))
	draw.Draw(img, img.Bounds(), image.NewUniform(color.Gray{Y: 70}), image.Point{}, draw.Src)
	if block {
		at := image.Rect(0, 0, 80, 80).Add(image.Pt(step*23%240, 40+step*17%120))
		draw.Draw(img, at, image.NewUniform(color.Gray{Y: 230}), image.Point{}, draw.Src)
	}
	var out bytes.Buffer
	if err := jpeg.Encode(&out, img, &jpeg.Options{Quality: 85}); err != nil {
		panic(err) // a buffer takes everything, and the size is fixed
	}
	return out.Bytes()
}

package lab

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestBeating sends a heartbeat at each tick, whatever the client does, and ends a
// connection whose client is silent for three.
func TestBeating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		ended := make(chan time.Time, 1)
		go func() {
			beating(plainSink, time.Second)(server, MinPlainBuffer)
			ended <- time.Now()
		}()
		begin := time.Now()
		got := make([]byte, len(Heartbeat))
		for i := 1; i <= 5; i++ {
			if _, err := io.ReadFull(client, got); err != nil || string(got) != Heartbeat {
				t.Fatalf("got %q, %v", got, err)
			}
			if at := time.Since(begin); at != time.Duration(i)*time.Second {
				t.Errorf("heartbeat %d came after %v", i, at)
			}
			if i <= 2 {
				time.Sleep(time.Second / 2)
				send(t, client, HeartbeatAnswer)
			}
		}
		// The last byte was sent at 2.5 s.
		if _, err := client.Read(got); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end", err)
		}
		if at := (<-ended).Sub(begin); at != 5500*time.Millisecond {
			t.Errorf("ended after %v, want 5.5 s", at)
		}
	})
}

// TestBeatingEnds ends with the client, and when a heartbeat can't be sent.
func TestBeatingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		client.Close()
		begin := time.Now()
		beating(plainSink, time.Second)(server, MinPlainBuffer)
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %v", took)
		}
		server, client = net.Pipe()
		defer client.Close()
		var sender sync.WaitGroup
		defer sender.Wait()
		sender.Go(func() { // sends often, reads never
			for {
				if _, err := io.WriteString(client, "x"); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		time.AfterFunc(10*time.Second, func() { server.Close() })
		beating(plainSink, time.Second)(server, MinPlainBuffer)
	})
}

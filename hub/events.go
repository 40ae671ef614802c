package hub

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// opening is the Value of a stream of events until it has begun: then it is the client alone.
type opening struct {
	client *client
	names  [2][]string // by kind
	since  Position    // behind which it begins, of what is kept
}

// A stream whose connection ends tells the browser to wait for a time between these, so that
// not all who lost theirs at one moment come back at one.
const leastRetry, mostRetry = time.Second, 5 * time.Second

var errNoTopics = fmt.Errorf("%w: expected the parameter topic, or pattern, or several", errNoName)

func (f *front) events(w http.ResponseWriter, r *http.Request) {
	u, q, ok := f.admit(w, r, "topic", "pattern", "since")
	if !ok {
		return
	}
	o := &opening{client: &client{format: stream, user: u}, names: [2][]string{Topic: q["topic"], Pattern: q["pattern"]}}
	err := f.check(o)
	if err == nil {
		err = f.begins(o, r, q)
	}
	if err != nil {
		refuse(w, statusOf(err), f.hub.refuse(err))
		return
	}
	w.Header().Set("X-Accel-Buffering", "no") // nginx is not to wait for more
	_ = f.streams.Subscribe(w, r, o)
}

// check says what is wrong with a stream's topics while that can be a status.
func (f *front) check(o *opening) error {
	n := 0
	for k, names := range o.names {
		for _, name := range names {
			if err := f.hub.checkName(name); err != nil {
				return err
			}
			if !o.client.user.maySubscribe(Kind(k), name) {
				return errDenied
			}
			n++
		}
	}
	if n == 0 {
		return errNoTopics
	}
	return nil
}

// begins reads where a stream begins: a browser that comes again says which id it has had last, which
// counts more than the parameter of the page's first request. It says so to a hub that keeps nothing, too.
func (f *front) begins(o *opening, r *http.Request, q url.Values) (err error) {
	var kept bool
	for k, names := range o.names {
		kept = kept || slices.ContainsFunc(names, func(name string) bool { return f.hub.keeps(Kind(k), name) })
	}
	switch last := r.Header.Get("Last-Event-ID"); {
	case !kept && q.Has("since"):
		err = fmt.Errorf("%w: the messages of these topics are not kept; expected no parameter since", errPosition)
	case !kept:
	case last != "":
		o.since, err = f.hub.Replay.position(last)
	case q.Has("since"):
		o.since, err = f.hub.Replay.position(q.Get("since"))
	}
	return err
}

// streamOpened subscribes a stream: who has its head gets all that is published from then on, or, of
// what is kept, from its last id on.
func (f *front) streamOpened(c *tcp.Conn) {
	o := c.Value().(*opening)
	c.SetValue(o.client)
	retry := leastRetry + rand.N(mostRetry-leastRetry)
	_, _ = fmt.Fprintf(c, "retry: %d\n\n", retry.Milliseconds())
	if err := f.enlist(c, o); err != nil {
		f.end(c, err)
	}
}

// enlist subscribes a stream to its topics.
func (f *front) enlist(c *tcp.Conn, o *opening) error {
	s := &resumption{h: f.hub, client: o.client, ref: c.Ref(), at: o.since, fail: f.end}
	for k, names := range o.names {
		for _, name := range names {
			if !f.hub.keeps(Kind(k), name) {
				if err := f.hub.subscribe(o.client, c.Ref(), Kind(k), name, func(int) {}); err != nil {
					return err
				}
			} else if !o.client.subscribed(Kind(k), name) {
				t, err := f.hub.join(o.client, c.Ref(), Kind(k), name, f.hub.Limits)
				if err != nil {
					return f.hub.refuse(err)
				}
				s.topics = append(s.topics, t)
			}
		}
	}
	if len(s.topics) == 0 {
		return nil
	}
	s.begin()
	return s.start(c)
}

// end tells a stream why it ends: the browser connects again.
func (f *front) end(c *tcp.Conn, why error) {
	data, _ := json.Marshal(socketReply{Op: "error", Error: why.Error()}) // of strings, which can't fail
	_, _ = c.Write(web.Event{Name: "refused", Data: string(data)}.Bytes())
	_ = c.Close()
}

func (f *front) streamClosed(c *tcp.Conn, why error) {
	if client, ok := c.Value().(*client); ok {
		f.hub.ended(client, c, why)
	}
}

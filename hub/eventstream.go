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

// eventSubscription is the Value of a connection before its event stream starts. Later, the Value is the client.
type eventSubscription struct {
	client *client
	names  [2][]string // by kind
	since  Position    // position after which to replay kept messages
}

// minRetry and maxRetry limit the reconnect delay sent to browsers. The delay is random, so that clients do not all
// reconnect at once.
const minRetry, maxRetry = time.Second, 5 * time.Second

var errNoTopics = fmt.Errorf("%w: expected at least one parameter topic or pattern", errEmptyName)

func (api *httpAPI) serveEventStream(w http.ResponseWriter, r *http.Request) {
	u, q, ok := api.parseParamsAndAuthenticate(w, r, "topic", "pattern", "since")
	if !ok {
		return
	}
	sub := &eventSubscription{client: &client{format: formatEvents, user: u}, names: [2][]string{Topic: q["topic"], Pattern: q["pattern"]}}
	err := api.checkEventTopicsAndRights(sub)
	if err == nil {
		err = api.parseReplayStart(sub, r, q)
	}
	if err != nil {
		writeHTTPError(w, statusForError(err), api.hub.countRefusal(err))
		return
	}
	w.Header().Set("X-Accel-Buffering", "no") // disable nginx's buffering
	_ = api.streams.Subscribe(w, r, sub)
}

// checkEventTopicsAndRights checks the topic names and the user's rights. It must run before the response begins,
// because an error status cannot be sent later.
func (api *httpAPI) checkEventTopicsAndRights(sub *eventSubscription) error {
	n := 0
	for k, names := range sub.names {
		for _, name := range names {
			if err := api.hub.checkNameLength(name); err != nil {
				return err
			}
			if !sub.client.user.maySubscribe(Kind(k), name) {
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

// parseReplayStart sets sub.since. The header Last-Event-ID, sent by a reconnecting browser, takes precedence over the
// URL parameter "since". If no topic is kept, Last-Event-ID is ignored.
func (api *httpAPI) parseReplayStart(sub *eventSubscription, r *http.Request, q url.Values) (err error) {
	var kept bool
	for k, names := range sub.names {
		kept = kept || slices.ContainsFunc(names, func(name string) bool { return api.hub.keepsAny(Kind(k), name) })
	}
	switch lastEventID := r.Header.Get("Last-Event-ID"); {
	case !kept && q.Has("since"):
		err = fmt.Errorf("%w: the messages of these topics are not kept; omit the parameter since", errBadPosition)
	case !kept:
	case lastEventID != "":
		sub.since, err = api.hub.Replay.parseIssuedPosition(lastEventID)
	case q.Has("since"):
		sub.since, err = api.hub.Replay.parseIssuedPosition(q.Get("since"))
	}
	return err
}

// startEventStream subscribes the client. The client receives all messages published after the response head has
// arrived. It also receives the kept messages after its last id.
func (api *httpAPI) startEventStream(c *tcp.Conn) {
	sub := c.Value().(*eventSubscription)
	c.SetValue(sub.client)
	retry := minRetry + rand.N(maxRetry-minRetry)
	_, _ = fmt.Fprintf(c, "retry: %d\n\n", retry.Milliseconds())
	if err := api.subscribeAndReplayEventStream(c, sub); err != nil {
		api.sendRefusalAndCloseEventStream(c, err)
	}
}

func (api *httpAPI) subscribeAndReplayEventStream(c *tcp.Conn, sub *eventSubscription) error {
	replay := &clientReplay{hub: api.hub, client: sub.client, ref: c.Ref(), pos: sub.since, closeClient: api.sendRefusalAndCloseEventStream}
	for k, names := range sub.names {
		for _, name := range names {
			if !api.hub.keepsAny(Kind(k), name) {
				if err := api.hub.subscribe(sub.client, c.Ref(), Kind(k), name, func(int) {}); err != nil {
					return err
				}
			} else if !sub.client.isSubscribed(Kind(k), name) {
				t, err := api.hub.authorizeAndRecordSubscription(sub.client, c.Ref(), Kind(k), name, api.hub.Limits)
				if err != nil {
					return api.hub.countRefusal(err)
				}
				replay.topics = append(replay.topics, t)
			}
		}
	}
	if len(replay.topics) == 0 {
		return nil
	}
	replay.initStartAndEncodeLastValues()
	return replay.replayNowOrInBackground(c)
}

// sendRefusalAndCloseEventStream sends the reason to the client and closes the stream. The browser then reconnects.
func (api *httpAPI) sendRefusalAndCloseEventStream(c *tcp.Conn, reason error) {
	data, _ := json.Marshal(socketReply{Op: "error", Error: reason.Error()}) // strings only: can't fail
	_, _ = c.Write(web.Event{Name: "refused", Data: string(data)}.Bytes())
	_ = c.Close()
}

func (api *httpAPI) handleEventStreamClosed(c *tcp.Conn, reason error) {
	if client, ok := c.Value().(*client); ok {
		api.hub.countLostIfSlowThenUnsubscribe(client, c, reason)
	}
}

// A worker for a queue of kind "pull", in plain Go (1.21 or newer, no packages): runs a command for each job, its body on
// stdin. Put your own code into handle().
//
//	go build http_worker.go
//	DELAYQ_URL=https://example.org/delayq DELAYQ_TOKEN=… ./http_worker QUEUE COMMAND [ARGUMENT…]
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const ttr = 60 // seconds; touched when half of it is over

var client = http.Client{Timeout: 40 * time.Second}
var stopping, _ = signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)

type job struct {
	ID, Lease  string
	Body       string
	BodyBase64 []byte `json:"body_base64"` // in place of Body if the bytes are not UTF-8
}

func handle(body []byte) error {
	command := exec.Command(os.Args[2], os.Args[3:]...)
	command.Stdin = bytes.NewReader(body)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, output[max(0, len(output)-2000):])
	}
	return nil
}

// post sends a request again while there is no server, or none that can answer. It returns the pause of Retry-After.
func post(verb string, body map[string]any, answer any) (time.Duration, error) {
	data, _ := json.Marshal(body)
	for {
		url := os.Getenv("DELAYQ_URL") + "/v1/queues/" + os.Args[1] + "/" + verb
		request, err := http.NewRequest("POST", url, bytes.NewReader(data))
		if err != nil {
			return 0, err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", "Token "+os.Getenv("DELAYQ_TOKEN"))
		pause := 5
		if response, err := client.Do(request); err == nil {
			text, err := io.ReadAll(response.Body)
			response.Body.Close()
			after, none := strconv.Atoi(response.Header.Get("Retry-After"))
			switch {
			case response.StatusCode < 300 && err == nil:
				return time.Duration(after) * time.Second, json.Unmarshal(text, answer)
			case response.StatusCode < 500 && response.StatusCode != 429:
				return 0, fmt.Errorf("%s: %s", verb, text)
			case none == nil:
				pause = after
			}
		}
		if stopping.Err() != nil {
			return 0, fmt.Errorf("%s: no answer, and the program was stopped", verb)
		}
		time.Sleep(time.Duration(pause) * time.Second)
	}
}

func run(one job) {
	held := func(more map[string]any) map[string]any {
		more["id"], more["lease"] = one.ID, one.Lease
		return map[string]any{"jobs": []any{more}}
	}
	touching := time.NewTicker(ttr * time.Second / 2)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-touching.C:
				if _, err := post("touch", held(map[string]any{"ttr": ttr}), &struct{}{}); err != nil {
					log.Print(err)
				}
			}
		}
	}()
	failure := handle(append([]byte(one.Body), one.BodyBase64...))
	touching.Stop()
	close(done)
	verb, more := "ack", map[string]any{}
	if failure != nil {
		verb, more["error"] = "fail", failure.Error()
	}
	var ended struct{ Results []struct{ Counted bool } }
	if _, err := post(verb, held(more), &ended); err != nil {
		log.Fatal(err)
	}
	if !ended.Results[0].Counted {
		log.Printf("the lease of %s was lost: another worker has the job", one.ID)
	}
}

func main() {
	for stopping.Err() == nil {
		var found struct{ Jobs []job }
		pause, err := post("reserve", map[string]any{"wait": 5, "ttr": ttr, "max": 10}, &found)
		if err != nil {
			log.Fatal(err)
		}
		var running sync.WaitGroup
		for _, one := range found.Jobs {
			running.Add(1)
			go func(one job) { defer running.Done(); run(one) }(one)
		}
		running.Wait()
		time.Sleep(pause)
	}
}

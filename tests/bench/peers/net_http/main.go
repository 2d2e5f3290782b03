// Go, net/http and franz-go: the signature checked, the webhook produced and waited for (acks=all), then 200.
// `receive KAFKA TOPIC` prints its port and serves; its secret is SECRET.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const tolerance = 5 * time.Minute

type webhook struct {
	Data struct {
		Object struct {
			OrderID string `json:"order_id"`
		} `json:"object"`
	} `json:"data"`
}

func verified(key []byte, header http.Header, body []byte) bool {
	sentAt := header.Get("webhook-timestamp")
	mac := hmac.New(sha256.New, key)
	io.WriteString(mac, header.Get("webhook-id")+"."+sentAt+".")
	mac.Write(body)
	wanted := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, one := range strings.Fields(header.Get("webhook-signature")) {
		if hmac.Equal([]byte(wanted), []byte(one)) {
			seconds, err := strconv.ParseInt(sentAt, 10, 64)
			return err == nil && time.Since(time.Unix(seconds, 0)).Abs() <= tolerance
		}
	}
	return false
}

func main() {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("SECRET"), "whsec_"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.DefaultProduceTopic(os.Args[2]), kgo.ProducerLinger(0))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /webhooks/{application}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
		var found webhook
		if !verified(key, r.Header, body) || json.Unmarshal(body, &found) != nil {
			http.Error(w, "not ours", http.StatusUnauthorized)
			return
		}
		record := &kgo.Record{Key: []byte(found.Data.Object.OrderID), Value: body}
		if err := client.ProduceSync(r.Context(), record).FirstErr(); err != nil {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"status":"accepted"}`)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, nil))
}

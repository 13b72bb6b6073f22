package lancespark;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import org.apache.spark.scheduler.SparkListenerEvent;

/**
 * The start, the progress or the end of a job. Event logs name this class. A history server without
 * the jar skips such events with a warning.
 */
@JsonIgnoreProperties(ignoreUnknown = true)
public record LanceJobEvent(LanceJob job) implements SparkListenerEvent {}

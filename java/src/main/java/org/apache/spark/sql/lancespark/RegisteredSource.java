package org.apache.spark.sql.lancespark;

import lance.DefaultSource;
import org.apache.spark.sql.sources.DataSourceRegister;

/**
 * The registration of `format("lance")` next to the jar of another connector with this name. Of
 * several registered sources, Spark takes the only class below org.apache.spark.
 */
public final class RegisteredSource extends DefaultSource implements DataSourceRegister {
  @Override
  public String shortName() {
    return "lance";
  }
}
